"""Share partitions: what an acquisition takes (korvet_share_acquire)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import redis

from tests.lua.share import (
    NONE,
    Share,
)


@pytest.fixture
def share(server: redis.Redis, set_clock: Callable[[float], None]) -> Share:
    """Ten batches of ten records, and a group that begins at the first."""
    share = Share(server, set_clock)
    assert share.create() == 0
    for number in range(10):
        share.put(f"b{number}")
    assert share.begin() == [NONE, -1]
    return share


def test_acquisition_takes_whole_batches_beyond_the_number_of_records(share: Share) -> None:
    acquired = share.acquire(15)
    assert acquired == (NONE, 0, 20, [(0, 19, 1)], 0, 0)
    assert share.take(1, "other") == [(20, 29, 1)]
    assert share.states() == [("acquired", 0, 19, 1), ("acquired", 20, 29, 1)]


def test_acquisition_by_records_takes_exactly_so_many(share: Share) -> None:
    share.mode = "records"
    assert share.take(15) == [(0, 14, 1)]
    assert share.take(1) == [(15, 15, 1)]
