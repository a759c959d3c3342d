"""``korvet serve``: run a broker."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import click

from korvet.cli.ground.environment import variable_of
from korvet.cli.ground.options import HELP_NAMES
from korvet.errors import ConfigError
from korvet.settings.choices import CONSOLES, LOG_FORMATS, LOG_LEVELS

if TYPE_CHECKING:
    from korvet.server.ground.settings import ListenerSettings, ServeSettings
    from korvet.settings.file import ConfigFile

MAX_PORT = 65535
_NOWHERE: Mapping[str, str] = MappingProxyType({})
MAX_ADVERTISED = 20
"""The most advertised ports: a client may keep a connection to each."""


@click.command(context_settings={**HELP_NAMES, "auto_envvar_prefix": "KORVET"})
@click.option("--listen", metavar="HOST:PORT", help="The address for Kafka clients.  [default: 127.0.0.1:9092]")
@click.option(
    "--advertised", metavar="HOST:PORT[-PORT]", help="The address that clients get.  [default: the listen address]"
)
@click.option("--redis", metavar="URL", help="The Redis or Valkey for all state.  [default: an embedded Valkey]")
@click.option("--data-dir", metavar="DIR", help="The embedded Valkey's directory.  [default: ./data]")
@click.option("--tier", metavar="URL", help="A bucket or directory for the oldest records of topics.  [default: none]")
@click.option("--tier-cache", metavar="DIR", help="A directory for what readers get from the tier.  [default: none]")
@click.option(
    "--tier-cache-bytes", type=click.IntRange(64 << 20), metavar="N", help="Its most bytes.  [default: 10737418240]"
)
@click.option("--workers", type=click.IntRange(1, 256), metavar="N", help="Processes on the port.  [default: 1]")
@click.option("--metrics", metavar="HOST:PORT", help="The HTTP port for metrics and health.  [default: none]")
@click.option("--console", type=click.Choice(CONSOLES), help="Whether that port has the console, too.  [default: off]")
@click.option("--console-config", metavar="FILE", help="A properties file with settings of the console's client.")
@click.option("--namespace", metavar="NAME", help="The namespace, if several share a Redis.")
@click.option(
    "--proxy-protocol", is_flag=True, default=None, help="A load balancer names its clients by PROXY protocol."
)
@click.option(
    "--security", type=click.Choice(["plaintext", "tls"]), help="The listener's security.  [default: plaintext]"
)
@click.option("--tls-cert", metavar="FILE", help="The certificate chain in PEM, for TLS.")
@click.option("--tls-key", metavar="FILE", help="The certificate's key in PEM.")
@click.option("--tls-client-ca", metavar="FILE", help="The authorities of clients' certificates in PEM.")
@click.option(
    "--tls-client-auth",
    type=click.Choice(["none", "requested", "required"]),
    help="Whether clients show certificates.  [default: none]",
)
@click.option(
    "--config",
    "config_file",
    type=click.Path(path_type=Path),
    envvar="KORVET_CONFIG",
    metavar="FILE",
    help="A TOML config file.",
)
@click.option("--log-level", type=click.Choice(LOG_LEVELS), help="The least level of log lines.  [default: info]")
@click.option("--log-format", type=click.Choice(LOG_FORMATS), help="The form of log lines on stderr.  [default: text]")
def serve(config_file: Path | None, **flags: Any) -> None:
    """Run a broker until SIGTERM or Ctrl-C.

    A line on stdout says that it is ready, and its address. Flags count more than the config file, which may also hold
    broker settings by their Kafka names, and several listeners, each with its own namespace: see 'korvet config
    --help'.

    On SIGHUP it reads the config file again. It logs the settings that it took, and those that need a restart.

    \b
    Example:  korvet serve --redis redis://127.0.0.1:6379 --listen 0.0.0.0:9092 --advertised broker.example:9092
    """
    settings = read_settings(flags, config_file, shown := _shown_names())
    from korvet.server.processes.main import run

    def read_again() -> ServeSettings | None:
        return None if config_file is None else read_settings(flags, config_file, shown)

    raise click.exceptions.Exit(run(settings, read_again))


def read_settings(flags: Mapping[str, Any], config_file: Path | None, shown: Mapping[str, str]) -> ServeSettings:
    """The server's settings from the flags and the config file as it is now.

    :raises ConfigError: as `make_settings`, and if the file cannot be read or is wrong.
    """
    from korvet.settings.file import ConfigFile, read_config

    return make_settings(flags, read_config(config_file) if config_file is not None else ConfigFile(), shown)


def _shown_names() -> dict[str, str]:
    """The names in errors of flags that environment variables set."""
    context = click.get_current_context()
    found = {parameter.name: variable_of(parameter, context) for parameter in context.command.params}
    return {name.replace("_", "-"): f"environment variable {found[name]}" for name in found if name and found[name]}


def make_settings(flags: Mapping[str, Any], config: ConfigFile, shown: Mapping[str, str] = _NOWHERE) -> ServeSettings:
    """The server's settings: flags by their Python names over the file's settings over the defaults.

    :param shown: flag -> its name in errors; by default its name on the command line.
    :raises ConfigError: if an address, a Redis URL or the namespace is wrong, or listeners exclude each other.
    """
    from korvet.server.bounds.connection_quotas import bounds_of
    from korvet.server.ground.settings import (
        ServeSettings,
        check_listener_configs,
        check_listeners,
        check_sasl,
        check_tenants,
        check_tier,
        limits_of,
    )
    from korvet.settings.schema import LISTENER_NAMES

    given_flags = {name.replace("_", "-"): value for name, value in flags.items() if value is not None}
    shown = {name: f"serve.{name}" for name in config.serve} | {name: f"--{name}" for name in given_flags} | dict(shown)
    given = dict(config.serve) | given_flags
    described = {name: given.pop(name) for name in LISTENER_NAMES if name in given}
    if described and config.listeners:
        raise ConfigError(f"{shown[next(iter(described))]}: give it in the config file's [[listener]] tables instead")
    tables = [
        ({name: f"listener #{at}.{name}" for name in table}, table) for at, table in enumerate(config.listeners, 1)
    ]
    listeners = tuple(_make_listener(table, names) for names, table in tables or [(shown, described)])
    check_listeners(listeners)
    limits_of(config.broker)
    bounds_of(config.broker)
    check_sasl(listeners, config.broker)
    check_listener_configs(listeners, config.broker)
    values: dict[str, Any] = {"broker": config.broker, "listeners": listeners}
    for name, value in given.items():
        match name:
            case "redis":
                values["redis_url"] = value
                _check_redis(value, shown[name])
            case "metrics":
                values["metrics"] = parse_address(value, shown[name])
            case "data-dir" | "tier-cache":
                values[name.replace("-", "_")] = Path(value).expanduser()
            case "tenant-redis-passwords":
                values["tenant_redis_passwords"] = Path(value)
            case "console-config":
                values["console_config"] = Path(value).expanduser()
            case "console-hostnames" | "metrics-hostnames":
                values[name.replace("-", "_")] = tuple(value)
            case _:
                values[name.replace("-", "_")] = value
    settings = ServeSettings(**values)
    check_tenants(settings)
    check_tier(settings)
    if settings.console != "off":
        from korvet.cli.console.beside import check_console

        check_console(settings, shown["console"])
    return settings


def _check_redis(url: str, flag: str) -> None:
    from korvet.redis.address import parse_redis_url

    try:
        parse_redis_url(url)
    except ConfigError as error:
        raise ConfigError(f"{flag}: {error}") from None


def _make_listener(table: Mapping[str, Any], shown: Mapping[str, str]) -> ListenerSettings:
    """A listener from values by the names of flags; ``shown`` has the flags' names in errors."""
    from korvet.security.protocol import ClientAuth, NamespaceFrom, Security
    from korvet.server.ground.settings import ListenerSettings

    if "namespace" in table and "namespace-from" in table:
        raise ConfigError(f"{shown['namespace']}: a listener has 'namespace' or 'namespace-from', not both")
    values: dict[str, Any] = {}
    for name, value in table.items():
        match name:
            case "listen":
                values["host"], values["port"] = parse_address(value, shown[name])
            case "advertised":
                values.update(_parse_advertised(value, shown[name]))
            case "security":
                values["security"] = Security.parse(value)
            case "tls-client-auth":
                values["tls_client_auth"] = ClientAuth(value)
            case "namespace-from":
                values["namespace_from"] = NamespaceFrom(value)
            case "sasl" | "proxy-protocol-from" | "tls-protocols" | "tls-cipher-suites":
                values[name.replace("-", "_")] = tuple(value)
            case "namespace" if not value:
                raise ConfigError(f"{shown[name]}: it may not be empty")
            case _:
                values[name.replace("-", "_")] = value
    return ListenerSettings(**values)


def _parse_advertised(text: str, flag: str) -> dict[str, str | int]:
    """An address with one port or a range of them, as the listener's settings.

    :raises ConfigError: if it is none, or its ports are too many or in the wrong order.
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
    """Host and port; an IPv6 host is in brackets, an empty host means all addresses.

    :raises ConfigError: if it is no such address.
    """
    host, separator, port = text.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    if not separator or not port.isdecimal() or int(port) > MAX_PORT or (":" in host and not bracketed):
        raise ConfigError(f"{flag}: {text!r} is not HOST:PORT; give an address such as 127.0.0.1:9092")
    return host.strip("[]") or "0.0.0.0", int(port)
