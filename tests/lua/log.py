"""One partition, driven by the tests: the library's log functions, called with a front-end's arguments."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any, NamedTuple

import redis

TOPIC_ID = "a" * 32
RUN_ID = "1" * 40
GONE = -3
RESEND = -2


class Appended(NamedTuple):
    """The reply of korvet_log_append."""

    code: int
    base_offset: int
    log_start: int
    leader_epoch: int


class Entry(NamedTuple):
    """A stream entry; ``batch`` is None if the batch is placed."""

    next_offset: int
    records: int
    size: int
    max_timestamp: int
    running_max_timestamp: int
    running_bytes: int
    running_batches: int
    leader_epoch: int
    crc: int
    batch: bytes | None

    @property
    def base_offset(self) -> int:
        return self.next_offset - self.records


class Found(NamedTuple):
    """The reply of korvet_log_offset_for_time when it is done; ``next_offset`` is -1 if there is none."""

    code: int
    next_offset: int
    log_start: int


class Log:
    """The partition ``name``; a test sets the topic id and run id to act as another front-end."""

    def __init__(self, server: redis.Redis, name: str = "{default:t:0}") -> None:
        self.server = server
        self.log = f"korvet:{name}:log"
        self.meta = f"korvet:{name}:meta"
        self.producers = f"korvet:{name}:producers"
        self.topic_id = TOPIC_ID
        self.run_id = RUN_ID
        self._temporary = count()

    @property
    def keys(self) -> tuple[str, str, str]:
        return (self.log, self.meta, self.producers)

    def call(self, function: str, *args: str | int | bytes, keys: tuple[str, ...] = ()) -> Any:
        keys = keys or self.keys
        return self.server.fcall(function, len(keys), *keys, *args)

    def create(self) -> int:
        (code,) = self.call("korvet_log_create", self.topic_id, self.run_id)
        return int(code)

    def append(
        self,
        records: int = 1,
        *,
        timestamp: int = 1000,
        batch: bytes = b"batch",
        producer: tuple[int, int, int] = (-1, -1, -1),
        is_next: bool = False,
    ) -> Appended:
        """Append an inline batch; ``producer`` is id, epoch and base sequence."""
        return self._append((), records, timestamp, len(batch), producer, batch, is_next=is_next)

    def place(
        self,
        records: int = 1,
        *,
        timestamp: int = 1000,
        batch: bytes = b"placed batch",
        producer: tuple[int, int, int] = (-1, -1, -1),
        is_sent: bool = True,
    ) -> Appended:
        """Append a batch by a temporary key, which exists unless ``is_sent`` is false."""
        temporary = self.temporary()
        if is_sent:
            self.server.set(temporary, batch, px=60_000)
        return self._append((temporary,), records, timestamp, len(batch), producer, b"")

    def temporary(self) -> str:
        return f"{self.log}:new:{next(self._temporary)}"

    def _append(
        self,
        temporary: tuple[str, ...],
        records: int,
        timestamp: int,
        size: int,
        producer: tuple[int, int, int],
        batch: bytes,
        *,
        is_next: bool = False,
    ) -> Appended:
        args = (self.topic_id, self.run_id, records, size, timestamp, 4_000_000_000, *producer, batch)
        reply: bytes = self.call("korvet_log_append", *args, *([1] if is_next else []), keys=(*self.keys, *temporary))
        return Appended(*map(int, reply.split()))

    def trim(self, offset: int, *, epoch: int | None = None) -> list[int]:
        """One call: code, log start, more."""
        chosen_in = () if epoch is None else (epoch,)
        reply: list[int] = self.call("korvet_log_trim", self.topic_id, offset, *chosen_in)
        return reply

    def delete(self) -> list[int]:
        """One call: code, more."""
        reply: list[int] = self.call("korvet_log_delete", self.topic_id)
        return reply

    def take_over(self) -> list[int]:
        """Code, leader epoch."""
        code, epoch, _ = self.call("korvet_log_take_over", self.topic_id, self.run_id)
        return [int(code), int(epoch)]

    def at_time(self, timestamp: int) -> Found:
        """The first batch with such a timestamp, found by as many calls as needed."""
        cursor: bytes | str = "-1"
        for _ in range(100):
            args = (self.topic_id, timestamp, cursor)
            reply = self.server.fcall_ro("korvet_log_offset_for_time", 2, self.log, self.meta, *args)
            code, status, position, index, log_start = reply
            if status != b"more":
                assert (status == b"found") == bool(index)
                return Found(code, int(position), log_start)
            cursor = position
        raise AssertionError("no end of calls")

    def entries(self) -> list[Entry]:
        entries: Any = self.server.xrange(self.log)
        return [
            Entry._make((int(name.removesuffix(b"-0")), *map(int, fields[b"i"].split()), fields.get(b"b")))
            for name, fields in entries
        ]

    def meta_fields(self) -> dict[str, str]:
        fields: Any = self.server.hgetall(self.meta)
        return {name.decode(): value.decode() for name, value in fields.items()}

    def state_of(self, producer_id: int) -> str | None:
        state: Any = self.server.hget(self.producers, str(producer_id))
        return None if state is None else state.decode()

    def producer_ids(self) -> set[int]:
        fields: Any = self.server.hkeys(self.producers)
        return {int(field) for field in fields if field}

    def dump(self) -> dict[str, bytes]:
        """Every key of the server, to compare before and after a call."""
        keys: Any = self.server.keys()
        return {key.decode(): self.server.dump(key) or b"" for key in sorted(keys)}


@contextmanager
def listening(server: redis.Redis, channel: str) -> Iterator[Callable[[], bytes]]:
    """Subscribe to a channel; yields a function that returns its next message."""
    client: Any = server
    with client.pubsub() as subscriber:
        subscriber.ssubscribe(channel)
        assert subscriber.get_sharded_message(timeout=5)["type"] == "ssubscribe"

        def next_message() -> bytes:
            message = subscriber.get_sharded_message(timeout=5)
            assert message is not None
            data: bytes = message["data"]
            return data

        yield next_message
