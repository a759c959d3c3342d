"""A partition on a server, driven as by a front-end: appends of real batches, reads, compaction.

The tests write by the library's functions. They read and compact by korvet's own code, which runs on an event loop
beside the test.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar
from uuid import uuid4

import redis
from anyio.from_thread import BlockingPortal, start_blocking_portal

from korvet.store.background.compaction.due import Compaction
from korvet.store.background.compaction.run import compact
from korvet.store.catalog.topic import Topic
from korvet.store.log.log import Log as Reader
from korvet.store.log.memory.room import PartitionRead, Want
from korvet.store.log.reading.times import NOTHING
from korvet.store.log.state.partition import Partition
from korvet.wire.batch import CONTROL, HEADER, TRANSACTIONAL, Batch
from korvet.wire.compacted import delete_horizon_ms, opened
from korvet.wire.markers import is_commit, marker
from tests.lua.log import Appended
from tests.lua.partition_model import Kind, Record, Sent
from tests.store.keyed import batches, keyed
from tests.store.logs import EVERYTHING, NAMESPACE, Front, front

LEASE_MS = 30_000
T = TypeVar("T")


class Index(NamedTuple):
    """An entry's index, as far as it describes the batch."""

    next_offset: int
    records: int
    size: int
    max_timestamp: int
    running_max_timestamp: int
    running_bytes: int
    running_batches: int
    leader_epoch: int
    crc: int
    data: bytes
    place: str
    """The last part of the placed batch's key; empty if the entry holds the batch."""


class Reading(Reader):
    """A front-end's log; the test chooses its server's history."""

    played = ""

    def find_run_id(self, partition: Partition) -> str:
        partition.run_id = self.played
        return self.played


class Loop:
    """The event loop that runs a front-end's part."""

    def __init__(self, portal: BlockingPortal, one: Front, reader: Reading) -> None:
        self._portal = portal
        self.front = one
        self.reader = reader

    def run(self, work: Callable[..., Coroutine[Any, Any, T]], *args: Any) -> T:
        done: T = self._portal.call(work, *args)
        return done


@contextmanager
def looping(url: str) -> Iterator[Loop]:
    """The front-end that runs beside the test."""
    with (
        start_blocking_portal("asyncio", {"use_uvloop": True}) as portal,
        portal.wrap_async_context_manager(front(url)) as one,
    ):

        async def reading() -> Reading:
            return Reading(NAMESPACE, one.store, one.catalog, one.wakeups)

        yield Loop(portal, one, portal.call(reading))


class OnServer:
    """A new partition."""

    def __init__(self, server: redis.Redis, loop: Loop) -> None:
        self.server = server
        self.topic = Topic(name=f"t-{uuid4().hex[:12]}", id=uuid4(), partitions=1, configs={})
        self.partition = loop.reader.partition(self.topic, 0)
        self.keys = self.partition.transaction_keys
        self.run_id = ""
        self._loop = loop
        self._temporary = 0
        self.begin_run(1)
        assert self.call("korvet_log_create", self.topic.id.hex, self.run_id) == [0]

    def begin_run(self, number: int) -> None:
        """Let the connections lead to another server from now on."""
        self.run_id = self._loop.reader.played = f"{number:040d}"
        self.partition.forget()

    def call(self, function: str, *args: str | int | bytes, keys: Sequence[str] = ()) -> Any:
        keys = keys or self.keys
        return self.server.fcall(function, len(keys), *keys, *args)

    # ------------------------------------------------------------------ writing

    def append(self, sent: Sent, *, placed: bool, is_there: bool = True) -> Appended:
        """Send a batch; a placed one lies in a temporary key, unless that key is gone."""
        producer = (sent.producer_id, sent.epoch, sent.first)
        attributes = TRANSACTIONAL if sent.is_transactional else 0
        data = keyed(*sent.records, timestamp=sent.timestamp, attributes=attributes, producer=producer)
        batch = Batch._make(HEADER.unpack_from(data))
        keys: list[str] = list(self.keys if sent.is_transactional else self.partition.keys)
        if placed:
            self._temporary += 1
            keys.append(f"{self.keys.log}:new:{self._temporary}")
            if is_there:
                self.server.set(keys[-1], data, px=60_000)
        args: list[str | int | bytes] = [
            self.topic.id.hex, self.run_id, batch.records, len(data), batch.max_timestamp, batch.crc,
            *producer, b"" if placed else data,
        ]  # fmt: skip
        if sent.is_transactional:
            ordinal = "" if sent.ordinal is None else sent.ordinal
            args += [1 if sent.is_next else "", ordinal, f"id-{sent.producer_id}", 1 if sent.joins else ""]
            return _appended(self.call("korvet_log_append_transactional", *args, keys=keys))
        return _appended(self.call("korvet_log_append", *args, *[1] * sent.is_next, keys=keys))

    def mark(self, producer_id: int, epoch: int, ordinal: int, kind: Kind, timestamp: int) -> Appended:
        batch, data = marker(producer_id, epoch, is_commit=kind == "commit", timestamp_ms=timestamp)
        head = (self.topic.id.hex, self.run_id, producer_id, epoch, ordinal, kind)
        return _appended(self.call("korvet_log_mark", *head, len(data), timestamp, batch.crc, data))

    def trim(self, offset: int) -> list[int]:
        for _ in range(100):
            code, start, more = self.call("korvet_log_trim", self.topic.id.hex, offset)
            if not more:
                return [code, start]
        raise AssertionError("no end of calls")

    def forget_producers(self, expiration_ms: int) -> None:
        """One call is enough for few producers."""
        assert self.call("korvet_log_forget_producers", self.topic.id.hex, expiration_ms, 1) == [0, 0]

    def take_over(self) -> int:
        code, epoch, _ = self.call("korvet_log_take_over", self.topic.id.hex, self.run_id, keys=self.partition.keys)
        assert code == 0
        return int(epoch)

    def delete(self) -> None:
        while self.call("korvet_log_delete", self.topic.id.hex)[1]:
            pass

    # ------------------------------------------------------------------ reading

    def read(self, offset: int, *, is_committed: bool) -> PartitionRead:
        want = Want(self.partition, offset, EVERYTHING, is_committed=is_committed)
        (found,) = self._loop.run(self._loop.reader.read, [want], EVERYTHING)
        return found

    def first_at(self, timestamp: int) -> tuple[int, int]:
        """Offset and time of the first record at or after a time."""
        found = self._loop.run(self._loop.reader.offset_for_time, self.partition, timestamp)
        assert found is not None
        return (-1, -1) if found == NOTHING else found[:2]

    def index(self) -> list[Index]:
        """The entries of the stream."""
        found: Any = self.server.xrange(self.keys.log)
        entries = []
        for name, fields in found:
            next_offset = int(name.removesuffix(b"-0"))
            data, place = fields.get(b"b"), ""
            if data is None:
                place = fields.get(b"p", b"%d" % next_offset).decode()
                data = self.server.get(f"{self.keys.log}:{place}")
            entries.append(Index._make((next_offset, *map(int, fields[b"i"].split()), data, place)))
        return entries

    def meta(self) -> dict[str, str]:
        fields: Any = self.server.hgetall(self.keys.meta)
        return {name.decode(): value.decode() for name, value in fields.items()}

    def producers(self) -> dict[int, str]:
        fields: Any = self.server.hgetall(self.keys.producers)
        return {int(name): value.decode() for name, value in fields.items() if name}

    def known_transactions(self) -> dict[int, tuple[int, int]]:
        """For each producer, the ordinal that was closed last and the open one."""
        fields: Any = self.server.hgetall(self.keys.transactions)
        split = {name: value.split(b" ", 3) for name, value in fields.items() if name}
        return {int(name): (int(parts[1]), int(parts[2])) for name, parts in split.items()}

    def members(self, key: str) -> list[tuple[bytes, int]]:
        found: Any = self.server.zrangebyscore(key, 0, "+inf", withscores=True)
        return [(member, int(score)) for member, score in found]

    def key_names(self) -> set[str]:
        prefix = self.keys.log.removesuffix("log")
        found: Any = self.server.scan_iter(match=f"{prefix}*", count=1000)
        return {name.decode().removeprefix(prefix) for name in found}

    # ------------------------------------------------------------------ compaction

    def compact(self, settings: Compaction, now_ms: int) -> bool:
        return self._loop.run(compact, self._loop.reader, self.partition, settings, now_ms)

    def break_off(self, token: str, cleaned: int, *, swaps: bool) -> bool:
        """A compaction that changes nothing, and whose front-end dies before or after its swap. False if another
        compaction has the lease."""
        keys = (*self.partition.keys, f"{self.keys.log}:spare")
        status = b"more"
        while status == b"more":
            _, status = self.call("korvet_log_compaction_begin", self.topic.id.hex, token, LEASE_MS, keys=keys)
        entries = self.index()
        if status == b"busy" or not entries:
            return status != b"busy"
        meta = self.meta()
        seen = [self.topic.id.hex, meta["run_id"], meta["epoch"], meta["start"], token]
        cursor, until = entries[0].next_offset - entries[0].records, entries[-1].next_offset
        copied = self.call("korvet_log_compaction_copy", *seen, 0, cursor, until, 0, 0, "", keys=keys)
        assert copied == [0, b"ready", len(entries)]
        if swaps:
            swapped = self.call(
                "korvet_log_compaction_swap", *seen, len(entries), until, 0, cleaned, keys=(*keys, self.keys.aborted)
            )
            assert swapped[:2] == [0, b"done"]
        return True


def _appended(reply: bytes) -> Appended:
    return Appended(*map(int, reply.split()))


def records_of(found: PartitionRead, offset: int) -> list[Record]:
    """All records that were read from an offset on, as for a client that ignores transactions."""
    return [record for batch, data in batches(found) for record in _records(batch, data) if record.offset >= offset]


def committed_of(found: PartitionRead, offset: int) -> list[Record]:
    """The records that a client gives to a reader of committed ones. Source: CompletedFetch.nextFetchedRecord"""
    to_come = sorted((first, producer_id) for producer_id, first in found.aborted or ())
    aborted: set[int] = set()
    left: list[Record] = []
    for batch, data in batches(found):
        last = batch.base_offset + batch.last_offset_delta
        while to_come and to_come[0][0] <= last:
            aborted.add(to_come.pop(0)[1])
        if batch.attributes & CONTROL:
            if not is_commit(opened(batch, data)[1][0].key):
                aborted.discard(batch.producer_id)
        elif not (batch.attributes & TRANSACTIONAL and batch.producer_id in aborted):
            left += _records(batch, data)
    return [record for record in left if record.offset >= offset]


def _records(batch: Batch, data: bytes) -> list[Record]:
    if batch.attributes & CONTROL:
        return []
    plain, inside = opened(batch, data)
    return [
        Record(batch.base_offset + one.offset_delta, one.key or b"", _value(plain, one.end, one.has_value),
               batch.base_timestamp + one.timestamp_delta)
        for one in inside
    ]  # fmt: skip


def _value(plain: bytes, end: int, has_value: bool) -> bytes | None:
    """The tests' values have eight bytes, and only an empty list of headers follows them."""
    return plain[end - 9 : end - 1] if has_value else None


def horizon_of(data: bytes) -> int | None:
    return delete_horizon_ms(Batch._make(HEADER.unpack_from(data)))
