"""``korvet apply``: the applied hashes of applications that apply topics to Redis exactly once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import click

from korvet.cli.ground.options import as_json, confirmed, redis_target
from korvet.cli.ground.output import show_json, show_table
from korvet.errors import KorvetError

if TYPE_CHECKING:
    from korvet.apply import Applied
    from korvet.cli.redis.connections import Node

_MOST_AT_ONCE = 500

_keys = click.argument("keys", metavar="KEY...", nargs=-1, required=True)
_topic = click.option("--topic", "topic_id", metavar="ID", help="Only of this topic, as the application names it.")


@click.group()
def apply() -> None:
    """List and forget what applications have applied to Redis; KEY is an applied hash."""


@apply.command("list")
@_keys
@redis_target
@click.option("--application", metavar="NAME", help="Only of this application.")
@_topic
@as_json
def list_places(keys: Sequence[str], url: str, application: str | None, topic_id: str | None, as_json: bool) -> None:
    """Show the place up to which each application has applied each partition, and its owner.

    DONE is not 0 if a command failed: so many commands after the place are done.

    \b
    Example:  korvet apply list '{shop}:applied' --redis redis://127.0.0.1:6379
    """
    from korvet.cli.redis.connections import open_nodes

    with open_nodes(url) as nodes:
        found = [(key, one) for key in keys for _, one in _fields(nodes, key, application, topic_id)]
    _show(found, as_json=as_json)


@apply.command()
@click.argument("application")
@_keys
@redis_target
@_topic
@confirmed
def forget(application: str, keys: Sequence[str], url: str, topic_id: str | None, execute: bool) -> None:
    """Forget the places of an application, or those in one topic; what it reads again is then applied again.

    \b
    Example:  korvet apply forget billing '{shop}:applied' --redis redis://127.0.0.1:6379 --execute
    """
    from korvet.cli.redis.connections import call_at, open_nodes

    with open_nodes(url) as nodes:
        found = [(key, *one) for key in keys for one in _fields(nodes, key, application, topic_id)]
        if not found:
            raise KorvetError(f"application {application!r} has no place there; see: korvet apply list")
        for key, field, _ in found if execute else ():
            call_at(nodes, "HDEL", key, field)
    _show([(key, one) for key, _, one in found], as_json=False)


def _fields(
    nodes: Sequence[Node], key: str, application: str | None, topic_id: str | None
) -> Iterator[tuple[str, Applied]]:
    """The fields of an applied hash, of one application and topic if these are given.

    :raises KorvetError: the key is no applied hash, or Redis refuses.
    """
    from korvet.apply import read_field
    from korvet.cli.redis.connections import call_at

    fields: dict[bytes, bytes] = {}
    cursor = -1
    while cursor:
        cursor, some = call_at(nodes, "HSCAN", key, str(max(cursor, 0)), "COUNT", str(_MOST_AT_ONCE))
        fields |= some
    for field, text in sorted(fields.items()):
        try:
            one = read_field(field, text)
        except ValueError:
            raise KorvetError(
                f"{key} is no applied hash: its field {field.decode(errors='replace')!r} is none"
            ) from None
        if application in (None, one.application) and topic_id in (None, one.topic_id):
            yield field.decode(), one


def _show(found: Sequence[tuple[str, Applied]], *, as_json: bool) -> None:
    if as_json:
        show_json([{"key": key, **_described(one)} for key, one in found])
    else:
        columns = ["KEY", "APPLICATION", "TOPIC ID", "PARTITION", "EPOCH", "OFFSET", "DONE", "OWNER"]
        show_table(columns, [(key, *_described(one).values()) for key, one in found])


def _described(one: Applied) -> dict[str, str | int | None]:
    """What is shown of a place; None is unknown."""
    epoch, offset = (None if number == -1 else number for number in one.place)
    return {
        "application": one.application,
        "topic_id": one.topic_id,
        "partition": one.partition,
        "leader_epoch": epoch,
        "offset": offset,
        "done": one.done,
        "owner": one.owner,
    }
