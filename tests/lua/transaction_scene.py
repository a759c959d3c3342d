"""A transactional id, two partitions and a group, as front-ends drive them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import redis

from tests.lua.log import TOPIC_ID
from tests.lua.transaction import NONE, VERIFY, Decision, Transactional, TransactionLog
from tests.lua.transaction_group import TransactionGroup


class Scene:
    """One transactional id that writes to partitions 0 and 1 and commits an offset of a group."""

    def __init__(self, server: redis.Redis, set_clock: Callable[[float], None]) -> None:
        self.app = Transactional(server, set_clock)
        self.logs = {f"t:{index}": TransactionLog(server, f"{{default:t:{index}}}") for index in range(2)}
        for log in self.logs.values():
            assert log.create() == NONE
        self.group = TransactionGroup(server, set_clock)
        self.sequences = dict.fromkeys(self.logs, 0)

    def write(self, producer: tuple[int, int], partition: str, records: int = 1) -> int:
        """Write as Produce does: ask the coordinator only if the partition says so. Returns the code."""
        log, sequence = self.logs[partition], self.sequences[partition]
        appended = log.write(records, (*producer, sequence))
        if appended.code == VERIFY:
            added = self.app.add(producer, {partition: TOPIC_ID})
            if added.code != NONE:
                return added.code
            appended = log.write(records, (*producer, sequence), added.ordinal)
        if appended.code == NONE:
            self.sequences[partition] += records
        return appended.code

    def hold(self, producer: tuple[int, int], offset: int) -> int:
        """Commit an offset as TxnOffsetCommit does. Returns the code."""
        added = self.app.add(producer, groups=["g"])
        return added.code or self.group.hold({"in:0": offset}, added.ordinal, producer=producer)

    def run(self, producer: tuple[int, int], offset: int) -> None:
        assert [self.write(producer, partition) for partition in self.logs] == [NONE, NONE]
        assert self.hold(producer, offset) == NONE

    def steps(self, decision: Decision) -> Iterator[int]:
        """Finish a decision step by step; each step yields its code."""
        for partition in decision.partitions:
            yield (
                self.logs[partition].mark(
                    (decision.producer_id, decision.marker_epoch), decision.ordinal, decision.outcome
                )
            ).code
        for _ in decision.groups:
            yield self.group.end(decision.outcome, decision.ordinal, decision.producer_id)
        self.app.complete(decision.ordinal)
        yield NONE

    def finish(self, decision: Decision) -> None:
        assert set(self.steps(decision)) == {NONE}

    def reset(self, version: int) -> None:
        """A producer's sequences begin again with its epoch."""
        if version == 2:
            self.sequences = dict.fromkeys(self.logs, 0)

    def ends(self) -> list[str]:
        """The partitions' last stable offsets."""
        return [str(log.first_open() or log.meta_fields()["end"]) for log in self.logs.values()]

    def state(self) -> dict[str, bytes]:
        found: Any = self.group.dump()
        return {key: dumped for key, dumped in found.items() if key != "clock_us"}
