"""Transactions, driven by the tests: the library's functions, called with a front-end's arguments."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import redis

from tests.lua.group import named, plain
from tests.lua.log import TOPIC_ID, Appended, Log

FRESH_ID = -8
VERIFY = -7
NONE = 0
OUT_OF_ORDER_SEQUENCE_NUMBER = 45
INVALID_PRODUCER_EPOCH = 47
INVALID_TXN_STATE = 48
INVALID_PRODUCER_ID_MAPPING = 49
CONCURRENT_TRANSACTIONS = 51
PRODUCER_FENCED = 90
TRANSACTIONAL_ID_NOT_FOUND = 105
TRANSACTION_ABORTABLE = 120

LAST_EPOCH = 2**15 - 1
EXPIRATION_MS = 7 * 86_400_000
START_S = 4_000_000_000.0
OUTCOMES = ("commit", "abort")
PARTITION = {"t:0": TOPIC_ID}
"""A member of a transaction, as `Transactional.add` takes it."""


class Decision(NamedTuple):
    """A decision that is not finished."""

    ordinal: int
    producer_id: int
    marker_epoch: int
    outcome: str
    partitions: dict[str, str]
    groups: list[str]


def decision_of(reply: Sequence[Any]) -> Decision:
    ordinal, producer_id, epoch, outcome, partitions, groups = reply
    flat = [plain(value) for value in partitions]
    by_partition = dict(zip(flat[::2], flat[1::2], strict=True))
    return Decision(ordinal, producer_id, epoch, plain(outcome), by_partition, [plain(value) for value in groups])


class ProducerReply(NamedTuple):
    """A code, a producer id and an epoch, and the decision if there is one."""

    code: int
    producer_id: int
    epoch: int
    decision: Decision | None = None

    @property
    def producer(self) -> tuple[int, int]:
        return self.producer_id, self.epoch


class Added(NamedTuple):
    """The reply of korvet_txn_add."""

    code: int
    ordinal: int
    codes: list[int]
    decision: Decision | None = None


class Transactional:
    """The transactional id ``name`` of a shard. Time stands still until `pass_time` moves it."""

    def __init__(self, server: redis.Redis, set_clock: Callable[[float], None], name: str = "app") -> None:
        self.server = server
        self.name = name
        self.keys = (f"korvet:{{default:@txn:00}}:id:{name}", "korvet:{default:@txn:00}:deadlines")
        self.now = START_S
        self.outages = ""
        self._set_clock = set_clock
        self._ids = 1000
        set_clock(self.now)

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self._set_clock(self.now)

    def _call(self, function: str, *args: str | int) -> Any:
        return self.server.fcall(f"korvet_txn_{function}", 2, *self.keys, *args)

    def _reply_of(self, function: str, *args: str | int) -> ProducerReply:
        reply = self._call(function, *args, -1, self.outages)
        if reply[0] == FRESH_ID:
            self._ids += 1
            reply = self._call(function, *args, self._ids, self.outages)
        return ProducerReply(*reply[:3], *map(decision_of, reply[3:4]))

    def init(self, producer: tuple[int, int] = (-1, -1), *, timeout_ms: int = 60_000) -> ProducerReply:
        return self._reply_of("init", self.name, timeout_ms, *producer)

    def add(
        self,
        producer: tuple[int, int],
        partitions: Mapping[str, str] | None = None,
        groups: Sequence[str] = (),
        *,
        mode: str = "add",
    ) -> Added:
        flat = [part for pair in (partitions or {}).items() for part in pair]
        flat += [part for group in groups for part in (group, "")]
        reply = self._call("add", self.name, *producer, mode, self.outages, *flat)
        return Added(*reply[:3], *map(decision_of, reply[3:4]))

    def end(self, producer: tuple[int, int], outcome: str = "commit", version: int = 2) -> ProducerReply:
        return self._reply_of("end", self.name, *producer, outcome, version)

    def complete(self, ordinal: int) -> None:
        assert self._call("complete", self.name, ordinal, EXPIRATION_MS) == [NONE]

    def due(self, most: int = 10) -> list[str]:
        reply: Any = self.server.fcall_ro("korvet_txn_due", 1, self.keys[1], most)
        return [plain(name) for name in reply]

    def expire(self) -> Decision | None:
        code, *decisions = self._call("expire", self.name, EXPIRATION_MS)
        assert code == NONE
        return decision_of(decisions[0]) if decisions else None

    def describe(self) -> dict[str, Any]:
        code, *flat = self.server.fcall_ro("korvet_txn_describe", 1, self.keys[0])
        if code == TRANSACTIONAL_ID_NOT_FOUND:
            return {}
        return {name: plain(value) for name, value in named(flat).items()}

    @property
    def state(self) -> str:
        return str(self.describe().get("state", ""))

    # ------------------------------------------------------------------ short cuts

    def begun(self, *partitions: str, groups: Sequence[str] = ()) -> tuple[tuple[int, int], int]:
        """A new producer with an open transaction: its id and epoch, and the ordinal."""
        producer = self.init().producer
        added = self.add(producer, dict.fromkeys(partitions or ("t:0",), TOPIC_ID), groups)
        assert added.code == NONE
        return producer, added.ordinal

    def decided(self, outcome: str = "commit", version: int = 2) -> tuple[tuple[int, int], Decision]:
        """A transaction with a decision: the producer before it, and the decision."""
        producer, _ = self.begun()
        decision = self.end(producer, outcome, version).decision
        assert decision is not None
        return producer, decision

    def ended(self, outcome: str = "commit", version: int = 2) -> tuple[int, int]:
        """A complete transaction; its producer as it was then."""
        producer, decision = self.decided(outcome, version)
        self.complete(decision.ordinal)
        return producer

    def field(self, name: str, number: int) -> None:
        self.server.hset(self.keys[0], name, number)


class TransactionLog(Log):
    """A partition with its keys for transactions."""

    def __init__(self, server: redis.Redis, name: str = "{default:t:0}") -> None:
        super().__init__(server, name)
        unit = f"korvet:{name}"
        self.open, self.aborted, self.transactions = f"{unit}:open", f"{unit}:aborted", f"{unit}:transactions"

    @property
    def keys(self) -> tuple[str, ...]:  # type: ignore[override]
        return (self.log, self.meta, self.producers, self.open, self.aborted, self.transactions)

    def plain(self, records: int, producer: tuple[int, int, int]) -> Appended:
        """A batch outside of transactions, by the keys of an append."""
        args = (self.topic_id, self.run_id, records, 5, 1000, 4_000_000_000, *producer, b"batch")
        reply: bytes = self.call("korvet_log_append", *args, keys=self.keys[:3])
        return Appended(*map(int, reply.split()))

    def write(
        self,
        records: int,
        producer: tuple[int, int, int],
        ordinal: int | str = "",
        *,
        is_next: bool = False,
        placed: bytes | None = None,
        inline: bytes = b"batch",
        joins: bool = False,
        transactional_id: str = "app",
    ) -> Appended:
        """A batch of a transaction, inline or placed; ``producer`` is id, epoch and base sequence."""
        temporary = [self.temporary()] if placed is not None else []
        if placed is not None:
            self.server.set(temporary[0], placed, px=60_000)
        batch = inline if placed is None else b""
        size = len(batch if placed is None else placed)
        args = (self.topic_id, self.run_id, records, size, 1000, 4_000_000_000, *producer, batch)
        rest = (1 if is_next else "", ordinal, transactional_id if ordinal else "", *([1] if joins else []))
        keys = (*self.keys, *temporary)
        reply: bytes = self.call("korvet_log_append_transactional", *args, *rest, keys=keys)
        return Appended(*map(int, reply.split()))

    def mark(self, producer: tuple[int, int], ordinal: int, outcome: str = "commit") -> Appended:
        args = (self.topic_id, self.run_id, *producer, ordinal, outcome, 6, 1000, 4_000_000_000, b"marker")
        reply: bytes = self.call("korvet_log_mark", *args)
        return Appended(*map(int, reply.split()))

    def first_open(self) -> int | None:
        found: Any = self.server.hget(self.meta, "first_open")
        return None if found is None else int(found)

    def open_transactions(self) -> dict[int, int]:
        found: Any = self.server.zrangebyscore(self.open, 0, "+inf", withscores=True)
        return {int(member): int(score) for member, score in found}

    def aborted_transactions(self, first: int = 0) -> list[tuple[int, ...]]:
        """The aborted transactions from an offset on: first and last offset, producer id, last stable offset."""
        found: Any = self.server.zrangebyscore(self.aborted, first, "+inf")
        return [tuple(map(int, member.split())) for member in found]

    def described(self, *, only_open: bool = False) -> dict[int, list[Any]]:
        """The state of each producer, by its id."""
        found: dict[int, list[Any]] = {}
        cursor = b"0"
        while True:
            args = (self.topic_id, cursor, "", 1) if only_open else (self.topic_id, cursor)
            reply: Any = self.server.fcall_ro("korvet_log_producers", 6, *self.keys, *args)
            code, cursor, producers = reply
            assert code == NONE
            found |= {of[0]: [plain(value) for value in of[1:]] for of in producers}
            if cursor == b"0":
                return found
