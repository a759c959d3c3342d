"""A partition that forgets silent producers."""

from __future__ import annotations

from collections.abc import Callable

import redis

from tests.lua.transaction import NONE, TransactionLog

HOUR_MS = 3_600_000
START_S = 2_000_000_000.0
Clock = Callable[[float], None]


class Remembering(TransactionLog):
    """A partition with a time of its own, in hours."""

    def __init__(self, server: redis.Redis, set_clock: Clock) -> None:
        super().__init__(server)
        self._set_clock = set_clock
        self.go_to(0)
        assert self.create() == NONE

    def go_to(self, hours: float) -> None:
        self._set_clock(START_S + 3600 * hours)

    def sweep(self, expiration_ms: int = HOUR_MS) -> None:
        is_first: int | str = 1
        for _ in range(1000):
            code, more = self.call("korvet_log_forget_producers", self.topic_id, expiration_ms, is_first)
            assert code == NONE
            if not more:
                return
            is_first = ""
        raise AssertionError("no end of calls")
