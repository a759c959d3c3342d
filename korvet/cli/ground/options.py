"""Flags that several commands share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar, cast

import click

from korvet.cli.ground.cluster import named_cluster
from korvet.cli.ground.environment import variable_of
from korvet.cli.ground.output import say_note
from korvet.cli.kafka.address import DEFAULT_BOOTSTRAP, parse_addresses
from korvet.errors import ConfigError, KorvetError

Function = TypeVar("Function", bound=Callable[..., Any])
HELP_NAMES = {"help_option_names": ["-h", "--help"]}


def cluster_options(function: Function) -> Function:
    """The flags ``--bootstrap-server`` and ``--command-config``, as in Kafka's own tools; hands over ``cluster``."""

    @bootstrap_server
    @command_config
    @wraps(function)
    def with_cluster(*args: Any, bootstrap_server: str | None, command_config: Path | None, **others: Any) -> Any:
        return function(*args, cluster=named_cluster(bootstrap_server, command_config), **others)

    return cast("Function", with_cluster)


def bootstrap_server(function: Function) -> Function:
    """The flag ``--bootstrap-server``."""

    def check(context: click.Context, parameter: click.Parameter, text: str | None) -> str | None:
        try:
            parse_addresses(text or DEFAULT_BOOTSTRAP)
        except ConfigError as error:
            raise _of_variable(error, parameter, context) from None
        return text

    return click.option(
        "-b",
        "--bootstrap-server",
        metavar="HOST:PORT[,…]",
        envvar="KORVET_BOOTSTRAP_SERVER",
        callback=check,
        help=f"A broker to start from.  [default: that of --command-config, else {DEFAULT_BOOTSTRAP}]",
    )(function)


def command_config(function: Function) -> Function:
    """The flag ``--command-config``."""
    return click.option(
        "--command-config",
        type=click.Path(dir_okay=False, path_type=Path),
        envvar="KORVET_CLIENT_CONFIG",
        metavar="FILE",
        help="A properties file with settings of the client, for TLS and logins, as Kafka's tools take it.",
    )(function)


def _of_variable(error: ConfigError, parameter: click.Parameter, context: click.Context) -> ConfigError:
    """The error, with the environment variable that the value came from."""
    variable = variable_of(parameter, context)
    return error if variable is None else ConfigError(f"environment variable {variable}: {error}")


def as_json(function: Function) -> Function:
    """The flag ``--json``: the same facts for programs."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")(function)


def confirmed(function: Function) -> Function:
    """The flags ``--dry-run`` and ``--execute`` of each command that destroys something; hands over ``execute``.

    Without ``--execute`` the function shows what it would do, and changes nothing. It may return a sentence that says
    why it could not be done now. The exit code is then 1, unless ``--dry-run`` was given: a script that meant the
    change learns that there was none.
    """

    @click.option("--dry-run", is_flag=True, help="Only show the effect, as without --execute; the exit code is 0.")
    @click.option("--execute", is_flag=True, help="Do it.")
    @wraps(function)
    def with_consent(*args: Any, dry_run: bool, execute: bool, **others: Any) -> None:
        if dry_run and execute:
            raise click.UsageError("--dry-run and --execute exclude each other")
        hindrance: str | None = function(*args, execute=execute, **others)
        if not execute:
            say_note(f"nothing was changed; {hindrance or 'add --execute to do it'}")
            raise click.exceptions.Exit(0 if dry_run else 1)

    return cast("Function", with_consent)


def partitions_option(function: Function) -> Function:
    """The flag ``--partition``, which may be given again; hands over ``partitions``."""
    return click.option(
        "-p",
        "--partition",
        "partitions",
        multiple=True,
        type=click.IntRange(0),
        metavar="N",
        help="Only this partition. May be given again.",
    )(function)


def isolation_option(function: Function) -> Function:
    """The flag ``--isolation``, as consumers have it."""
    return click.option(
        "--isolation",
        type=click.Choice(["read_committed", "read_uncommitted"]),
        default="read_committed",
        show_default=True,
        help="read_committed leaves out records of open and aborted transactions.",
    )(function)


def named_values(pairs: Sequence[str], form: str = "NAME=VALUE") -> dict[str, str]:
    """NAME=VALUE pairs by their names; of several of a name the last.

    :raises click.BadParameter: one is not of the form, which the text calls ``form``.
    """
    settings = {}
    for pair in pairs:
        name, separator, value = pair.partition("=")
        if not separator or not name:
            raise click.BadParameter(f"{pair!r} is not of the form {form}")
        settings[name.strip()] = value.strip()
    return settings


def settings_option(flag: str, name: str, help_text: str) -> Callable[[Function], Function]:
    """A repeatable flag that takes NAME=VALUE pairs and hands over a dict."""

    def parse(context: click.Context, parameter: click.Parameter, pairs: tuple[str, ...]) -> dict[str, str]:
        return named_values(pairs)

    return click.option(flag, name, multiple=True, metavar="NAME=VALUE", callback=parse, help=help_text)


def changes_options(function: Function) -> Function:
    """``--set NAME=VALUE`` and ``--unset NAME``; hands over ``values`` and ``unset``."""
    unset = click.option(
        "--unset", multiple=True, metavar="NAME", help="A setting to reset to its default. May be given again."
    )
    return settings_option("--set", "values", "A setting and its new value. May be given again.")(unset(function))


def redis_target(function: Function) -> Function:
    """The flags ``--redis URL`` and ``--data-dir DIR`` (its embedded server); hands over ``url``."""

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
        try:
            return function(*args, url=redis_url or embedded_url(Path(data_dir)), **others)
        except ConfigError as error:
            context = click.get_current_context()
            redis = next(parameter for parameter in context.command.params if parameter.name == "redis_url")
            raise _of_variable(error, redis, context) from None

    return cast("Function", with_url)


def embedded_url(data_dir: Path) -> str:
    """The URL of the embedded server of a data directory.

    :raises KorvetError: if none runs there.
    """
    if data_dir.is_file():
        raise KorvetError(f"data directory {data_dir} is a file; name the directory of 'korvet serve' with --data-dir")
    socket = data_dir / "valkey.sock"
    if not socket.exists():
        raise KorvetError(
            f"no embedded server runs in {data_dir}; start it with 'korvet serve', or name a Redis with --redis URL"
        )
    return f"unix://{socket.resolve()}"
