"""``korvet tier``: the objects of a tier, their check, and the recovery of Redis from them."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

import click

from korvet.cli.ground.options import as_json, confirmed, redis_target
from korvet.cli.ground.output import say_note, show_json, show_table
from korvet.errors import KorvetError

if TYPE_CHECKING:
    from korvet.tier.objects import Objects
    from korvet.tier.recovery import Done
    from korvet.tier.snapshot import Snapshot

Function = TypeVar("Function", bound=Callable[..., Any])
T = TypeVar("T")

_where = click.option(
    "--tier", "where", envvar="KORVET_TIER", required=True, metavar="URL", help="The bucket or directory, as of serve."
)
_namespace = click.option("--namespace", default="default", show_default=True, metavar="NAME", help="Whose topics.")


@click.group()
def tier() -> None:
    """List, describe and verify what a tier holds, and recover a Redis from it.

    All but 'recover' read the tier alone, and need no broker.
    """


def with_objects(
    work: Callable[..., Coroutine[Any, Any, T]], where: str, *rest: object, is_read_only: bool = True
) -> T:
    """The result of a coroutine over the objects. A directory that is only read is not made.

    :raises KorvetError:
    """
    import anyio

    from korvet.tier.objects import open_objects

    async def opened() -> T:
        return await work(open_objects(where, is_read_only=is_read_only), *rest)

    try:
        return anyio.run(opened)
    except BaseExceptionGroup as group:
        first: BaseException = group
        while isinstance(first, BaseExceptionGroup):
            first = first.exceptions[0]
        raise first from None


@tier.command("list")
@_where
@_namespace
@as_json
def list_topics(where: str, namespace: str, as_json: bool) -> None:
    """List the topics in a tier, as their snapshots have them.

    \b
    Example:  korvet tier list --tier s3://bucket/prefix
    """
    from korvet.tier.survey import survey

    found = with_objects(survey, where, namespace)
    rows = [(topic, found.of(topic)) for topic in found.topics.topics]
    if as_json:
        show_json(
            [
                {"topic": topic.name, "id": topic.id, "partitions": topic.partitions, "bytes": _bytes(parts)}
                | {"offsets": sum(one.tier_end - min(one.log_start, one.tier_end) for one in parts)}
                for topic, parts in rows
            ]
        )
    else:
        cells = [
            (topic.name, topic.partitions, _bytes(parts), sum(max(0, one.tier_end - one.log_start) for one in parts))
            for topic, parts in rows
        ]
        show_table(["TOPIC", "PARTITIONS", "BYTES", "OFFSETS"], cells)
    _fail(found.problems)


@tier.command()
@click.argument("topic")
@_where
@_namespace
@as_json
def describe(topic: str, where: str, namespace: str, as_json: bool) -> None:
    """Show the partitions of a topic in a tier: its log start, the end of the tier, and bytes.

    \b
    Example:  korvet tier describe orders --tier s3://bucket/prefix
    """
    from korvet.tier.survey import survey

    found = with_objects(survey, where, namespace, topic)
    named = found.topics.named(topic)
    parts = [] if named is None else found.of(named)
    if as_json:
        show_json(
            {"topic": topic, "id": named and named.id, "configs": dict(named.configs) if named else {}}
            | {"partitions": [_described(one) for one in parts]}
        )
    else:
        rows = [
            (one.partition, one.log_start, one.tier_end, one.leader_epoch, len(one.readable()), _bytes([one]))
            for one in parts
        ]
        show_table(["PARTITION", "LOG START", "TIER END", "EPOCH", "OBJECTS", "BYTES"], rows)
    _fail(found.problems)


@tier.command()
@click.argument("topic", required=False)
@_where
@_namespace
@click.option("--redis", "redis_url", metavar="URL", help="Also check that this Redis has all that the tier has.")
@as_json
def verify(topic: str | None, where: str, namespace: str, redis_url: str | None, as_json: bool) -> None:
    """Read all of a tier, or of one topic, and check every byte, and that segments follow each other.

    It reads as many bytes as the tier holds: a bucket elsewhere may charge for them. The exit code is 1 if something
    is damaged or missing.

    \b
    Example:  korvet tier verify orders --tier s3://bucket/prefix
    """
    problems, rows = with_objects(_verified, where, namespace, topic, redis_url)
    if as_json:
        names = ("topic", "partition", "segments", "bytes", "problems")
        show_json([dict(zip(names, row, strict=True)) for row in rows])
    else:
        shown = [(name, number, segments, size, len(found) or "ok") for name, number, segments, size, found in rows]
        show_table(["TOPIC", "PARTITION", "SEGMENTS", "BYTES", "PROBLEMS"], shown)
    _fail([*problems, *(problem for row in rows for problem in row[4])])


async def _verified(
    objects: Objects, namespace: str, topic: str | None, redis_url: str | None
) -> tuple[list[str], list[tuple[str, int, int, int, list[str]]]]:
    from korvet.tier.survey import survey, verify_newest

    found, rows = await survey(objects, namespace, topic), []
    for (name, number), snapshot in found.partitions.items():
        one = await verify_newest(objects, snapshot)
        rows.append((name, number, one.segments, one.size_bytes, one.problems))
    lost = []
    if redis_url is not None:
        _, done = await _recovered(objects, namespace, redis_url, take_over=False, execute=False)
        lost = [
            f"{one.topic}: Redis lacks something: {one.text}; see korvet tier recover"
            for one in done
            if one.status != "whole" and topic in (None, one.topic)
        ]
    return [*found.problems, *lost], rows


@tier.command()
@_where
@_namespace
@redis_target
@click.option("--take-over", is_flag=True, help="Let this Redis own the tier, although another one wrote it.")
@as_json
@confirmed
def recover(where: str, namespace: str, url: str, take_over: bool, as_json: bool, execute: bool) -> str | None:
    """Restore the topics of a tier into a Redis that was emptied, or that came back without its last writes.

    Topic ids, settings, partitions, offsets, log starts and leader epochs are as the last snapshots have them. Deleted
    topics and records stay deleted. What the tier does not hold is named. The command may be repeated.

    Another Redis may own the tier. If that one runs, nothing is done; with --take-over it only reads from then on.

    \b
    Example:  korvet tier recover --tier s3://bucket/prefix --redis redis://127.0.0.1:6379 --execute
    """
    from korvet.tier.recovery import LOST

    hindrance, done = with_objects(_recovered, where, namespace, url, take_over, execute, is_read_only=not execute)
    if as_json:
        show_json({"done": [one._asdict() for one in done], "lost": list(LOST)})
    else:
        show_table(["TOPIC", "PARTITION", "STATUS", "WHAT"], [tuple(one) for one in done])
        say_note("not in the tier, and so not restored: " + "; ".join(LOST))
    _fail([f"{one.topic}: {one.text}" for one in done if one.is_refused])
    return hindrance


async def _recovered(
    objects: Objects, namespace: str, url: str, take_over: bool, execute: bool
) -> tuple[str | None, list[Done]]:
    from korvet.store.keys import Namespace
    from korvet.store.library import open_store
    from korvet.tier.recovery import Recovery
    from korvet.tier.survey import survey

    found = await survey(objects, namespace)
    async with open_store(url, connect_timeout_s=5.0) as store:
        recovery = Recovery(store, Namespace(namespace), found, objects, only_looks=not execute)
        await recovery.open()
        hindrance = None if take_over else await recovery.hindrance()
        if execute:
            if hindrance is not None:
                raise KorvetError(hindrance)
            say_note("looking whether another Redis still owns the tier, which takes up to 50 s after a restart")
            await recovery.own(takes_over=take_over)
        return hindrance, list(await recovery.run())


def _bytes(parts: Any) -> int:
    return sum(member.size_bytes + member.footer_bytes for one in parts for member in one.readable())


def _described(one: Snapshot) -> dict[str, object]:
    return {
        "partition": one.partition,
        "log_start": one.log_start,
        "tier_end": one.tier_end,
        "leader_epoch": one.leader_epoch,
        "objects": len(one.readable()),
        "bytes": _bytes([one]),
    }


def _fail(problems: Any) -> None:
    """Name the problems on stderr, and end with 1 if there are any."""
    for problem in problems:
        say_note(f"korvet: {problem}")
    if problems:
        raise click.exceptions.Exit(1)
