"""``korvet serve``: run a broker."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from korvet.cli.options import HELP_NAMES
from korvet.errors import ConfigError

if TYPE_CHECKING:
    from korvet.server.settings import ListenerSettings, ServeSettings
    from korvet.settings.file import ConfigFile

MAX_PORT = 65535
MAX_ADVERTISED = 20
"""A client may keep a connection to each port that it is told."""


@click.command(context_settings={**HELP_NAMES, "auto_envvar_prefix": "KORVET"})
@click.option("--listen", metavar="HOST:PORT", help="Where Kafka clients connect.  [default: 127.0.0.1:9092]")
@click.option("--advertised", metavar="HOST:PORT[-PORT]", help="What clients are told.  [default: the listen address]")
@click.option("--redis", metavar="URL", help="Redis or Valkey to keep all state in.  [default: an embedded Valkey]")
@click.option("--data-dir", metavar="DIR", help="Where the embedded Valkey keeps its data.  [default: ./data]")
@click.option("--workers", type=click.IntRange(1, 256), metavar="N", help="Processes on the port.  [default: 1]")
@click.option("--namespace", metavar="NAME", help="Whose topics and groups, where several share a Redis.")
@click.option(
    "--proxy-protocol", is_flag=True, default=None, help="A load balancer says with PROXY protocol who connects."
)
@click.option("--config", "config_file", type=click.Path(path_type=Path), metavar="FILE", help="A TOML config file.")
@click.option("--log-level", type=click.Choice(["debug", "info", "warning", "error"]), help="[default: info]")
@click.option("--log-format", type=click.Choice(["text", "json"]), help="Of the log lines on stderr.  [default: text]")
def serve(config_file: Path | None, **flags: Any) -> None:
    """Run a broker until SIGTERM or Ctrl-C.

    A line on stdout says when it is ready and where. Flags count more than the config file, which may also hold broker
    settings by their Kafka names, and several listeners, each with its own namespace: see 'korvet config --help'.
    """
    from korvet.settings.file import ConfigFile, read_config

    settings = make_settings(flags, read_config(config_file) if config_file is not None else ConfigFile())
    from korvet.server.main import run

    raise click.exceptions.Exit(run(settings))


def make_settings(flags: Mapping[str, Any], config: ConfigFile) -> ServeSettings:
    """What the server is started with: flags by their Python names over the file's settings over the defaults.

    :raises ConfigError: when an address, a Redis URL or the namespace is wrong, or listeners exclude each other.
    """
    from korvet.server.settings import ServeSettings, check_listeners
    from korvet.settings.schema import LISTENER_NAMES
    from korvet.store.address import parse_redis_url

    given = dict(config.serve) | {name.replace("_", "-"): value for name, value in flags.items() if value is not None}
    described = {name: given.pop(name) for name in LISTENER_NAMES if name in given}
    if described and config.listeners:
        raise ConfigError(f"--{next(iter(described))}: the config file's [[listener]] tables say that")
    tables = [(f"listener #{at}.", table) for at, table in enumerate(config.listeners, 1)] or [("--", described)]
    listeners = tuple(_make_listener(table, place) for place, table in tables)
    check_listeners(listeners)
    values: dict[str, Any] = {"broker": config.broker, "listeners": listeners}
    for name, value in given.items():
        match name:
            case "redis":
                parse_redis_url(value)
                values["redis_url"] = value
            case "data-dir":
                values["data_dir"] = Path(value).expanduser()
            case _:
                values[name.replace("-", "_")] = value
    return ServeSettings(**values)


def _make_listener(table: Mapping[str, Any], place: str) -> ListenerSettings:
    """A listener by the names of flags; ``place`` stands before a name in errors."""
    from korvet.server.settings import ListenerSettings

    values: dict[str, Any] = {}
    for name, value in table.items():
        match name:
            case "listen":
                values["host"], values["port"] = parse_address(value, place + name)
            case "advertised":
                values.update(_parse_advertised(value, place + name))
            case "namespace" if not value:
                raise ConfigError(f"{place}{name}: it may not be empty")
            case _:
                values[name.replace("-", "_")] = value
    return ListenerSettings(**values)


def _parse_advertised(text: str, flag: str) -> dict[str, str | int]:
    """An address with one port or a range of them, as the listener's settings.

    :raises ConfigError: when it is none, or its ports are too many or in the wrong order.
    """
    address, dash, last = text.rpartition("-")
    if not dash or ":" in last or ":" not in address:
        host, port = parse_address(text, flag)
        return {"advertised_host": host, "advertised_port": port}
    host, port = parse_address(address, flag)
    if not last.isdecimal() or int(last) > MAX_PORT or not port or not 0 < int(last) - port < MAX_ADVERTISED:
        raise ConfigError(
            f"{flag}: {text!r} is no range of at most {MAX_ADVERTISED} ports; want HOST:PORT-PORT, for example "
            "kafka.example:9092-9097"
        )
    return {"advertised_host": host, "advertised_port": port, "advertised_last_port": int(last)}


def parse_address(text: str, flag: str) -> tuple[str, int]:
    """Host and port; an IPv6 host stands in brackets, an empty one means all addresses.

    :raises ConfigError: when it is no such address.
    """
    host, separator, port = text.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    if not separator or not port.isdecimal() or int(port) > MAX_PORT or (":" in host and not bracketed):
        raise ConfigError(f"{flag}: {text!r} is no address; want HOST:PORT, for example 127.0.0.1:9092")
    return host.strip("[]") or "0.0.0.0", int(port)
