"""A partition of records, driven by the tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import redis

from korvet.wire.record_entries import arguments, batches, split, stored_record
from tests.lua.log import RUN_ID, TOPIC_ID, Appended, Log
from tests.support.times import MIDNIGHT_MS
from tests.wire.whole import Whole, built, read

RULES = "1000 0 0 0"
NONE = (-1, -1, -1)


class Records(Log):
    """A partition of records, with the keys of its transactions and its inlet."""

    def __init__(self, server: redis.Redis) -> None:
        super().__init__(server)
        unit = self.log.removesuffix("log")
        self.transactional = (*self.keys, *(unit + name for name in ("open", "aborted", "transactions")))
        self.inlet = unit + "in"
        self.inlets = (*self.keys, self.inlet, f"{self.inlet}:refused")
        self.call("korvet_log_create", TOPIC_ID, RUN_ID, keys=self.transactional)

    def add(
        self,
        *records: Whole,
        producer: tuple[int, int, int] = NONE,
        is_next: bool = False,
        ordinal: int | str | None = None,
    ) -> Appended:
        """Append a batch record by record. A batch of a transaction has its ordinal, or '' if that is unknown."""
        batch, data = built(*records, producer=producer, attributes=0 if ordinal is None else 0x10)
        kind = "" if ordinal is None else "transactional"
        reply: bytes = self.call(
            "korvet_log_append_records", self.topic_id, self.run_id, len(records), len(data), batch.max_timestamp,
            batch.crc, *producer, kind, 1 if is_next else "", "" if ordinal is None else ordinal, "id", "",
            *plain(arguments(batch, split(batch, data, is_json=False))), keys=self.transactional,
        )  # fmt: skip
        return Appended(*map(int, reply.split()))

    def mark(self, producer_id: int, epoch: int, ordinal: int, decision: str) -> Appended:
        args = (TOPIC_ID, RUN_ID, producer_id, epoch, ordinal, decision, 78, MIDNIGHT_MS, 0, b"marker")
        reply: bytes = self.call("korvet_log_mark", *args, keys=self.transactional)
        return Appended(*map(int, reply.split()))

    def configure(self, rules: str = RULES, topic_id: str = TOPIC_ID) -> int:
        (code,) = self.call("korvet_record_configure", topic_id, rules, keys=self.inlets)
        return int(code)

    def drain(self) -> list[int]:
        reply: list[int] = self.call("korvet_record_drain", self.topic_id, self.run_id, keys=self.inlets)
        return reply

    def records(self) -> list[Whole]:
        """The records as consumers get them, with their sizes checked."""
        found = []
        # A dict would lose repeated fields.
        entries: Any = self.server.eval("return redis.call('XRANGE', KEYS[1], '-', '+')", 1, self.log)
        for name, fields in entries:
            index = fields[1].split()
            if fields[2] == b"r":
                ((_, data),) = batches([stored_record(int(name[:-2]) - 1, int(index[2]), 0, fields[2:])])
                assert len(data) == int(index[1])
                found += [one.record for one in read(data)]
        return found

    def stored(self) -> list[dict[bytes, bytes]]:
        """The fields of each entry; a repeated field has its last value."""
        entries: Any = self.server.xrange(self.log)
        return [fields for _, fields in entries]

    def refused(self) -> list[dict[bytes, bytes]]:
        entries: Any = self.server.xrange(f"{self.inlet}:refused")
        return [fields for _, fields in entries]


def plain(args: Sequence[Any]) -> list[Any]:
    return [bytes(one) if isinstance(one, memoryview) else one for one in args]
