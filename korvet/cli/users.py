"""``korvet users``: the users who may log in by SCRAM or PLAIN, straight in Redis, for the first one of them."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from korvet.cli.options import as_json, redis_target
from korvet.cli.output import show_json, show_table
from korvet.errors import KorvetError

_MECHANISMS = ("SCRAM-SHA-256", "SCRAM-SHA-512")
_FEWEST, _MOST = 4096, 16384

in_namespace = click.option(
    "--namespace", default="default", show_default=True, metavar="NAME", help="The namespace of the users."
)


@click.group()
def users() -> None:
    """Add, list and remove users in Redis; 'kafka-configs.sh --entity-type users' does it over Kafka's protocol."""


@users.command()
@click.argument("name")
@redis_target
@in_namespace
@click.option("--mechanism", type=click.Choice(_MECHANISMS), default="SCRAM-SHA-512", show_default=True)
@click.option("--iterations", type=click.IntRange(_FEWEST, _MOST), default=_FEWEST, show_default=True)
@click.option(
    "--password-file", type=click.Path(path_type=Path), metavar="FILE", help="A file with the password; - is stdin."
)
def add(name: str, url: str, namespace: str, mechanism: str, iterations: int, password_file: Path | None) -> None:
    """Add a user, or give a user another password. Without a file it asks for the password, or reads it from stdin.

    \b
    Example:  korvet users add admin --redis redis://127.0.0.1:6379
    """
    from korvet.security.scram import make_credential
    from korvet.store.security.users import text_of

    if not name:
        raise KorvetError("a user's name may not be empty")
    credential = make_credential(mechanism, _password(password_file), iterations)
    _, codes = _alter(url, namespace, f"{mechanism}:{name}", text_of(credential))
    if codes is None:
        raise KorvetError(f"user {name!r} was not added: the name is too long, or there are 10000 credentials")
    click.echo(f"user {name} may log in by {mechanism} in namespace {namespace}")


@users.command("list")
@redis_target
@in_namespace
@as_json
def list_users(url: str, namespace: str, as_json: bool) -> None:
    """List the users, their mechanisms and iterations.

    \b
    Example:  korvet users list --redis redis://127.0.0.1:6379
    """
    from korvet.cli.redis import call
    from korvet.store.keys import Namespace

    reply = call(url, "FCALL_RO", "korvet_users_read", "1", Namespace(namespace).security.users, "-1")
    found = []
    for field, text in zip(reply[2][::2], reply[2][1::2], strict=True):
        mechanism, _, user = field.decode().partition(":")
        found.append((user, mechanism, int(text.split()[0])))
    if as_json:
        show_json(
            [{"user": user, "mechanism": one, "iterations": iterations} for user, one, iterations in sorted(found)]
        )
    else:
        show_table(["USER", "MECHANISM", "ITERATIONS"], sorted(found))


@users.command()
@click.argument("name")
@redis_target
@in_namespace
@click.option("--mechanism", type=click.Choice(_MECHANISMS), help="Only this mechanism's password.  [default: all]")
def remove(name: str, url: str, namespace: str, mechanism: str | None) -> None:
    """Remove a user; the user's sessions end within a second.

    \b
    Example:  korvet users remove alice --redis redis://127.0.0.1:6379
    """
    texts = [text for one in ([mechanism] if mechanism else _MECHANISMS) for text in (f"{one}:{name}", "")]
    _, codes = _alter(url, namespace, *texts)
    if codes is None or all(codes):
        raise KorvetError(f"there is no user {name!r} in namespace {namespace}")
    click.echo(f"user {name} is removed from namespace {namespace}")


def _password(file: Path | None) -> str:
    """The password: of a file, of stdin, or asked for twice at a terminal.

    :raises KorvetError: if the file cannot be read, or the password is empty.
    """
    try:
        if file is not None and str(file) != "-":
            password = file.read_text("utf-8")
        elif file is None and sys.stdin.isatty():
            password = click.prompt("Password", hide_input=True, confirmation_prompt=True)
        else:
            password = sys.stdin.read()
    except (OSError, UnicodeDecodeError) as error:
        raise KorvetError(f"cannot read the password: {error}") from None
    password = password.removesuffix("\n").removesuffix("\r")
    if not password:
        raise KorvetError("the password may not be empty")
    return password


def _alter(url: str, namespace: str, *changes: str) -> tuple[int, list[int] | None]:
    """The code of a change and the codes of its parts; None if the change was refused."""
    from korvet.cli.redis import call
    from korvet.store.keys import Namespace

    code, codes = call(url, "FCALL", "korvet_users_alter", "1", Namespace(namespace).security.users, *changes)
    return code, None if code else codes
