"""``korvet functions``: the Lua library in a Redis, on every primary if there are several."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from korvet.cli.ground.options import as_json, redis_target
from korvet.cli.ground.output import show_json, show_table
from korvet.errors import KorvetError

if TYPE_CHECKING:
    from korvet.cli.redis.connections import Node
    from korvet.store.library import Found


@click.group()
def functions() -> None:
    """Load the Lua library, compare a Redis's version, find an error's line, show its functions."""


@functions.command()
@redis_target
@click.option("--downgrade", is_flag=True, help="Replace a newer library, too; front-ends of its version then fail.")
def load(url: str, downgrade: bool) -> None:
    """Load this version's library if it is absent, older or changed.

    \b
    Example:  korvet functions load --redis redis://127.0.0.1:6379
    """
    from korvet.cli.redis.connections import open_nodes, refuse_lone_node
    from korvet.store.library import State, library_version, refuse_newer

    with open_nodes(url) as nodes:
        refuse_lone_node(url, nodes)
        found = [(node, _found(node)) for node in nodes]
        if not downgrade:
            for node, at_node in found:
                refuse_newer(at_node, str(node.address))
        for node, at_node in found:
            if at_node.state is State.CURRENT:
                click.echo(f"{node.address} has library {at_node.version} already")
            else:
                _load(node)
                click.echo(f"loaded library {library_version()} at {node.address} ({_before(at_node)})")


@functions.command()
@redis_target
@as_json
def check(url: str, as_json: bool) -> None:
    """Compare the library of a Redis with this version's; the exit code is 1 unless they are the same.

    \b
    Example:  korvet functions check --redis redis://127.0.0.1:6379
    """
    from korvet.cli.redis.connections import open_nodes, refuse_lone_node
    from korvet.store.library import State, library_version

    with open_nodes(url) as nodes:
        refuse_lone_node(url, nodes)
        found = [(str(node.address), _found(node)) for node in nodes]
    if as_json:
        show_json(
            [
                {"server": server, "state": item.state, "version": item.version or None, "own": library_version()}
                for server, item in found
            ]
        )
    else:
        show_table(
            ["SERVER", "STATE", "VERSION", "THIS KORVET'S"],
            [(server, item.state, item.version or None, library_version()) for server, item in found],
        )
    if any(item.state is not State.CURRENT for _, item in found):
        raise click.exceptions.Exit(1)


@functions.command()
@click.argument("line")
def where(line: str) -> None:
    """Name the file of a line of the library: a number, user_function:NUMBER, or an error's whole text.

    \b
    Example:  korvet functions where user_function:1234
    """
    from korvet.store.library import where

    click.echo(str(where(line)))


@functions.command()
def reference() -> None:
    """Show each function's keys, arguments, reply and codes, in Markdown.

    \b
    Example:  korvet functions reference > docs/functions.md
    """
    from korvet.store.reference import reference

    click.echo(reference())


def _found(node: Node) -> Found:
    from redis.exceptions import RedisError

    from korvet.cli.redis.connections import ask
    from korvet.store.library import QUESTION, judge

    try:
        return judge(ask(node.client, *QUESTION))
    except RedisError as error:
        raise KorvetError(f"cannot see the functions of {node.address}: {error}") from None


def _load(node: Node) -> None:
    from redis.exceptions import RedisError

    from korvet.cli.redis.connections import ask
    from korvet.store.library import load_command

    try:
        ask(node.client, *load_command())
    except RedisError as error:
        raise KorvetError(f"cannot load the library at {node.address}: {error}") from None


def _before(found: Found) -> str:
    return f"it was {found.state}, {found.version}" if found.version else f"it was {found.state}"
