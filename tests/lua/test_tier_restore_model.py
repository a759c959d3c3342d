"""The model of segments (`test_tier_model`), with snapshots, and a Redis that is emptied or restored from a backup.

After a recovery each offset from the snapshot's log start on has the batch that it had at the snapshot, and the log
goes on behind them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import redis
from hypothesis.stateful import precondition, rule

from tests.lua.machines import bound, run_machine
from tests.lua.test_tier_model import Batches, State, TierMachine
from tests.lua.test_tier_restore import Facts, facts, restore


class RestoreMachine(TierMachine):
    def __init__(self) -> None:
        super().__init__()
        self.backup = self.saved
        self.published: tuple[Facts, Batches] | None = None

    @rule()
    def publish(self) -> None:
        """What a snapshot has is on the disks before."""
        if self.real.listed().tier_end >= 0:
            self.published = facts(self.real), self.batches
            self.saved = self._state()

    @rule()
    def back_up(self) -> None:
        self.backup = self._state()

    @rule()
    def delete_objects(self) -> None:
        """A snapshot with the log start is published before."""
        self.publish()
        super().delete_objects()

    @precondition(lambda self: len(self.seen) > 5)
    @rule()
    def recreate(self) -> None:
        super().recreate()
        self.published, self.backup = None, self.saved

    @precondition(lambda self: self.published)
    @rule()
    def lose_all_and_recover(self) -> None:
        assert self.published is not None
        of, batches = self.published
        self.real.come_back({})
        assert self._restored(of) == b"create"
        self._go_on(of, batches)

    @precondition(lambda self: self.published)
    @rule()
    def restore_a_backup_and_recover(self) -> None:
        assert self.published is not None
        of, batches = self.published
        self.real.come_back(self.backup.keys)
        listed = self.real.listed()
        before = self.backup
        status = self._restored(of)
        if status in (b"list", b"whole"):
            is_ahead = listed.tier_end > of.tier_end
            self.batches, self.start = before.batches, max(before.start, of.start)
            tiered = tuple(one for one in batches if one[1] <= of.tier_end)
            same = tuple(one for one in before.batches if one[1] <= of.tier_end)
            assert is_ahead or tiered[-len(same) :] == same or not same
            self._begin(of)
        elif status == b"move":
            self._go_on(of, batches)
        else:
            # Its last records are of a history that was lost, and the tier has others at their offsets.
            assert status == b"conflict"
            assert not set(before.batches) <= set(batches)
            self.lose_all_and_recover()

    def _restored(self, of: Facts) -> bytes:
        reply: list[Any] = restore(self.real, of)
        while reply[4]:
            reply = [*reply[:4], restore(self.real, of)[4]]
        assert reply[0] == 0
        if reply[1] != b"conflict":
            assert self.real.trim(of.start)[0] == 0
        return bytes(reply[1])

    def _go_on(self, of: Facts, batches: Batches) -> None:
        self.start = of.start
        self.batches = tuple(one for one in batches if one[1] <= of.tier_end)
        if self.end < of.start:
            # All records that the tier has were deleted, and others, too.
            self.batches = ((of.start - 1, of.start, ""),)
        self._begin(of)

    def _begin(self, of: Facts) -> None:
        _, self.epoch = self.real.take_over()
        assert self.epoch > of.epoch
        self.saved = self.backup = State(self.real.saved(), self.batches, self.start)
        self.pending, self.seen = [], []


def test_recovered_tier_agrees_with_a_list_of_batches(server: redis.Redis, set_clock: Callable[[float], None]) -> None:
    run_machine(bound(RestoreMachine, server, set_clock), examples=40, steps=40)
