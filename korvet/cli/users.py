"""``korvet users``: the users that may log in by SCRAM or PLAIN, over Kafka's protocol or directly in Redis."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import click

from korvet.cli.ground.options import as_json, confirmed
from korvet.cli.ground.output import say_note, show_json, show_table
from korvet.cli.ground.passwords import password_file, read_password
from korvet.cli.security.backend import Backend, KafkaBackend, security_backend
from korvet.errors import KorvetError

_MECHANISMS = ("SCRAM-SHA-256", "SCRAM-SHA-512")
_FEWEST, _MOST = 4096, 16384


@click.group()
def users() -> None:
    """Add, list and remove users, over Kafka's protocol or straight in Redis."""


@users.command()
@click.argument("name")
@click.option("--mechanism", type=click.Choice(_MECHANISMS), default="SCRAM-SHA-512", show_default=True)
@click.option("--iterations", type=click.IntRange(_FEWEST, _MOST), default=_FEWEST, show_default=True)
@password_file
@security_backend
def add(name: str, mechanism: str, iterations: int, password_file: Path | None, backend: Backend) -> None:
    """Add a user, or give a user another password. Without a file it asks for the password, or reads it from stdin.

    \b
    Example:  korvet users add admin --redis redis://127.0.0.1:6379
    """
    from korvet.store.security.users import CredentialKey

    if not name:
        raise KorvetError("a user's name may not be empty")
    password = read_password(password_file)
    if isinstance(backend, KafkaBackend) and backend.cluster.is_overheard:
        say_note("korvet: the connection has no TLS: whoever reads the salted password on its way can log in with it")
    with backend.opened() as secured:
        secured.users.add(CredentialKey(mechanism, name), password, iterations)
    click.echo(f"user {name} may log in by {mechanism}")


@users.command("list")
@as_json
@security_backend
def list_users(as_json: bool, backend: Backend) -> None:
    """List the users, their mechanisms and iterations.

    \b
    Example:  korvet users list --command-config admin.properties
    """
    with backend.opened() as secured:
        found = secured.users.find()
    if as_json:
        show_json([{"user": one.name, "mechanism": one.mechanism, "iterations": one.iterations} for one in found])
    else:
        _show(found)


@users.command()
@click.argument("name")
@click.option("--mechanism", type=click.Choice(_MECHANISMS), help="Only this mechanism's password.  [default: all]")
@confirmed
@security_backend
def remove(name: str, mechanism: str | None, execute: bool, backend: Backend) -> None:
    """Remove a user, whose sessions end within a second; without --execute only show the user.

    \b
    Example:  korvet users remove alice --command-config admin.properties --execute
    """
    mechanisms = [mechanism] if mechanism else _MECHANISMS
    with backend.opened() as secured:
        if execute:
            is_there = secured.users.remove(name, mechanisms)
        else:
            found = [one for one in secured.users.find() if one.name == name and one.mechanism in mechanisms]
            is_there = bool(found)
    if not is_there:
        raise KorvetError(f"there is no user {name!r}; see all users with: korvet users list")
    if execute:
        click.echo(f"user {name} is removed")
    else:
        _show(found)


def _show(found: Iterable[Sequence[object]]) -> None:
    show_table(["USER", "MECHANISM", "ITERATIONS"], found)
