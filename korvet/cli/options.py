"""Flags that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar, cast

import click

from korvet.errors import KorvetError

Function = TypeVar("Function", bound=Callable[..., Any])
HELP_NAMES = {"help_option_names": ["-h", "--help"]}

DEFAULT_BOOTSTRAP = "127.0.0.1:9092"


def bootstrap_server(function: Function) -> Function:
    """``--bootstrap-server``, as in Kafka's own tools."""
    return click.option(
        "-b",
        "--bootstrap-server",
        metavar="HOST:PORT[,…]",
        envvar="KORVET_BOOTSTRAP_SERVER",
        default=DEFAULT_BOOTSTRAP,
        show_default=True,
        help="A broker to start from.",
    )(function)


def as_json(function: Function) -> Function:
    """``--json``: the same facts for programs."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")(function)


def settings_option(flag: str, name: str, help_text: str) -> Callable[[Function], Function]:
    """A repeatable flag that takes NAME=VALUE pairs and hands over a dict."""

    def parse(context: click.Context, parameter: click.Parameter, pairs: tuple[str, ...]) -> dict[str, str]:
        settings = {}
        for pair in pairs:
            key, separator, value = pair.partition("=")
            if not separator or not key:
                raise click.BadParameter(f"{pair!r} is not of the form NAME=VALUE")
            settings[key.strip()] = value.strip()
        return settings

    return click.option(flag, name, multiple=True, metavar="NAME=VALUE", callback=parse, help=help_text)


def redis_target(function: Function) -> Function:
    """``--redis URL`` or ``--data-dir DIR`` (its embedded server); hands over ``url``."""

    @click.option("--redis", "redis_url", envvar="KORVET_REDIS", metavar="URL", help="A Redis or Valkey.")
    @click.option(
        "--data-dir",
        envvar="KORVET_DATA_DIR",
        default="data",
        show_default=True,
        metavar="DIR",
        help="Without --redis: the embedded server of this directory, which must be running.",
    )
    @wraps(function)
    def with_url(*args: Any, redis_url: str | None, data_dir: str, **others: Any) -> Any:
        return function(*args, url=redis_url or _embedded_url(Path(data_dir)), **others)

    return cast("Function", with_url)


def _embedded_url(data_dir: Path) -> str:
    socket = data_dir / "valkey.sock"
    if not socket.exists():
        raise KorvetError(
            f"no embedded server runs in {data_dir}; start it with 'korvet serve', or name a Redis with --redis URL"
        )
    return f"unix://{socket.resolve()}"
