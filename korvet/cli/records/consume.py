"""``korvet topics consume``: show a topic's records."""

from __future__ import annotations

import io
import os
import select
import signal
import sys
from collections.abc import Sequence
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Self

import click

from korvet.cli.ground.options import cluster_options, isolation_option, partitions_option
from korvet.cli.ground.output import say_note
from korvet.cli.ground.stopping import STOPPING, stopped_in_order
from korvet.cli.ground.times import Time, milliseconds
from korvet.errors import KorvetError

if TYPE_CHECKING:
    from korvet.cli.ground.cluster import Cluster
    from korvet.cli.kafka.client import Client
    from korvet.cli.kafka.consume import Cursor, Item, Reader
    from korvet.cli.kafka.membership import GroupReader
    from korvet.cli.kafka.offsets import TopicPartition
    from korvet.cli.records.formats import Write

_PIECE_BYTES = 1 << 16
_STARTS = {"earliest": "earliest", "beginning": "earliest", "latest": "latest", "end": "latest"}


class Offset(click.ParamType[str | int]):
    """``earliest``, ``latest``, an offset, or a negative number that counts from the end."""

    name = "offset"

    def convert(self, value: str | int, param: click.Parameter | None, ctx: click.Context | None) -> str | int:
        if isinstance(value, int) or value in _STARTS:
            return value if isinstance(value, int) else _STARTS[value]
        try:
            return int(value)
        except ValueError:
            self.fail(f"{value!r} is no offset; want earliest, latest, N, or -N for N before the end", param, ctx)


class _Consume(click.Command):
    """A command that answers the words of other tools with its own."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        given = list(args)
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            if error.option_name == "--from-beginning":
                raise click.UsageError(
                    "there is no --from-beginning; without --offset it begins there, with --group by --offset earliest",
                    ctx,
                ) from None
            raise
        except click.UsageError as error:
            # The template of kcat's and rpk's -f is one argument too many.
            if type(error) is click.UsageError and any(word.startswith("-f") for word in given):
                raise click.UsageError("-f is --follow here; the form of records is --format", ctx) from None
            raise


@click.command(cls=_Consume)
@click.argument("topic")
@partitions_option
@click.option(
    "-o", "--offset", type=Offset(), metavar="earliest|latest|N|-N", help="The first offset.  [default: earliest]"
)
@click.option("--from-time", type=Time(), metavar="TIME|24h", help="Begin at the first record of this time or later.")
@click.option("--to-time", type=Time(), metavar="TIME|1h", help="End before the first record of this time or later.")
@click.option("-n", "--max-records", type=click.IntRange(1), metavar="N", help="End after N records.")
@click.option("-g", "--group", metavar="GROUP", help="Read on as a member of a group, at its offsets.")
@click.option("-f", "--follow", is_flag=True, help="Wait for more records at the end, until Ctrl-C.")
@click.option(
    "--format",
    "form",
    default="value",
    show_default=True,
    metavar="value|full|json|TEMPLATE",
    help="A record's form; a TEMPLATE has kcat's %t %p %o %T (ms) %k %s %h, lengths %K %S, and \\n \\t \\xNN.",
)
@click.option("--json", "is_json", is_flag=True, help="The same as --format json: an object on each line.")
@isolation_option
@cluster_options
def consume(
    topic: str,
    partitions: tuple[int, ...],
    offset: str | int | None,
    from_time: datetime | None,
    to_time: datetime | None,
    max_records: int | None,
    group: str | None,
    follow: bool,
    form: str,
    is_json: bool,
    isolation: str,
    cluster: Cluster,
) -> None:
    """Show the records that a topic has now. Without --group it commits nothing.

    With --group it shares the topic with the group's other members, and commits the records that it has shown. It reads
    until --max-records, Ctrl-C or SIGTERM, and leaves the group then.

    A pipe or a file gets keys, values and headers byte by byte; a terminal gets escapes for control characters. A
    record that cannot be decoded is named on stderr, with --json on stdout, and then the exit code is 1.

    \b
    Examples:  korvet topics consume greetings
               korvet topics consume greetings --offset -10 --follow --format '%p@%o %k: %s\\n'
    """
    from korvet.cli.kafka.consume import Reader
    from korvet.cli.records.formats import JSON, make_format

    if offset is not None and from_time is not None:
        raise click.UsageError("--offset and --from-time exclude each other")
    if follow and to_time is not None:
        raise click.UsageError("--follow and --to-time exclude each other")
    form = JSON if is_json else form
    write = make_format(form, on_terminal=sys.stdout.isatty())
    committed = isolation == "read_committed"
    if group is not None and (partitions or from_time or to_time or isinstance(offset, int)):
        raise click.UsageError(
            "--group reads on at the group's offsets; it takes no other start than earliest or latest"
        )
    with stopped_in_order(), cluster.client() as client:
        if group is not None:
            records, failures = _show_to_member(
                client, group, topic, offset, committed, write, form == JSON, max_records
            )
        else:
            cursors = _cursors(client, topic, partitions, offset, from_time, to_time, follow)
            reader = Reader(client, cursors, committed=committed)
            records, failures = _show(reader, write, form == JSON, max_records)
    if not records and not failures:
        say_note(f"topic {topic} has no records in this range")
    if failures:
        raise click.exceptions.Exit(1)


def _cursors(
    client: Client,
    topic: str,
    partitions: Sequence[int],
    offset: str | int | None,
    from_time: datetime | None,
    to_time: datetime | None,
    follow: bool,
) -> list[Cursor]:
    """The first and the last offset to read of each partition; offsets are kept between the log's start and end."""
    from korvet.cli.kafka.consume import Cursor
    from korvet.cli.kafka.offsets import log_limits, offsets_at
    from korvet.cli.kafka.topics import chosen_partitions

    topic_partitions = chosen_partitions(client, topic, partitions)
    starts, ends = log_limits(client, topic_partitions)
    stops = ends if to_time is None else offsets_at(client, ends, milliseconds(to_time))
    if from_time is not None:
        wanted = offsets_at(client, ends, milliseconds(from_time))
    elif offset == "latest":
        wanted = ends
    elif isinstance(offset, int):
        wanted = {partition: offset if offset >= 0 else ends[partition] + offset for partition in starts}
    else:
        wanted = starts
    return [
        Cursor(
            partition=partition,
            position=min(max(wanted[partition], starts[partition]), ends[partition]),
            stop=None if follow else stops[partition],
        )
        for partition in starts
    ]


def _show_to_member(
    client: Client,
    group: str,
    topic: str,
    offset: str | int | None,
    committed: bool,
    write: Write,
    is_json: bool,
    max_records: int | None,
) -> tuple[int, int]:
    from korvet.cli.kafka.membership import GroupReader, require_protocol
    from korvet.cli.kafka.topics import chosen_partitions

    require_protocol(client)
    chosen_partitions(client, topic, ())
    reader = GroupReader(client, group, topic, from_end=offset == "latest", committed=committed)
    try:
        return _show(reader, write, is_json, max_records)
    finally:
        reader.close()


def _show(reader: Reader | GroupReader, write: Write, is_json: bool, max_records: int | None) -> tuple[int, int]:
    """Write the items that are read; returns the numbers of records and of undecodable gaps."""
    from korvet.cli.kafka.records import Record, Undecodable
    from korvet.cli.records.formats import undecodable_as_json

    records = failures = 0
    with _Screen(reader) as screen:
        while not reader.is_done:
            for partition, item in reader.read():
                if isinstance(item, Record):
                    screen.write(write(partition, item))
                    records += 1
                elif is_json and isinstance(item, Undecodable):
                    screen.write(undecodable_as_json(partition, item, on_terminal=sys.stdout.isatty()))
                else:
                    screen.show()
                    say_note(_sentence(partition, item))
                failures += isinstance(item, Undecodable)
                reader.handled(partition, item)
                if records == max_records:
                    return records, failures
                if screen.is_full:
                    screen.show()
            screen.show()
    return records, failures


class _Screen:
    """Stdout, which gets lines in pieces; after each piece the reader learns that it was shown.

    A signal does not come between the two, unless stdout takes nothing: then it ends the wait, within a piece that
    counts as not shown. Records that were read before a broker failed are shown.
    """

    def __init__(self, reader: Reader | GroupReader) -> None:
        self._reader = reader
        self._piece = bytearray()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None or issubclass(kind, KorvetError):
            self.show()

    @property
    def is_full(self) -> bool:
        """True if the piece is large enough to be shown."""
        return len(self._piece) >= _PIECE_BYTES

    def write(self, line: bytes) -> None:
        """Add a line to the next piece."""
        self._piece += line

    def show(self) -> None:
        """Show the piece."""
        before = signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)
        try:
            _write(memoryview(self._piece), before)
            self._reader.shown()
        finally:
            self._piece = bytearray()
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _write(left: memoryview, mask: set[int | signal.Signals]) -> None:
    """Write to stdout; while it takes nothing, the signals of ``mask`` alone are blocked."""
    try:
        out = sys.stdout.fileno()
    except io.UnsupportedOperation:
        # A caller from Python keeps the written bytes.
        sys.stdout.buffer.write(left)
        return
    while left:
        if select.select([], [out], [], 0)[1]:
            # As much never blocks.
            left = left[os.write(out, left[: select.PIPE_BUF]) :]
        else:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            select.select([], [out], [])
            signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)


def _sentence(partition: TopicPartition, item: Item) -> str:
    from korvet.cli.kafka.consume import Gone, Uncommitted
    from korvet.cli.kafka.records import Undecodable

    last = item.offset if not isinstance(item, Undecodable | Gone | Uncommitted) else item.last_offset
    where = f"{partition}@{item.offset}" + (f"…{last}" if last > item.offset else "")
    if isinstance(item, Undecodable):
        return f"{where} cannot be decoded: {item.reason}; read on after it with -p {partition.partition} -o {last + 1}"
    if isinstance(item, Uncommitted):
        return f"{where} is held back by an open transaction; --isolation read_uncommitted shows it"
    return f"{where} was removed before it could be read"
