"""The lease of a partition's tierer, and objects of the tier that may be deleted."""

from __future__ import annotations

from typing import Any

import pytest
import redis

from tests.lua.log import GONE
from tests.lua.tier import Tiered

NONE = 0
DOOMED = "korvet:{n:@catalog}:doomed"


@pytest.fixture
def log(server: redis.Redis) -> Tiered:
    log = Tiered(server)
    assert log.create() == NONE
    return log


def lease(log: Tiered, token: str, lease_ms: int = 60_000, topic_id: str | None = None) -> Any:
    topic = topic_id or log.server.hget(log.meta, "topic_id")
    return log.server.fcall("korvet_tier_lease", 1, log.meta, topic, token, lease_ms)


def test_one_tierer_has_the_lease_until_it_ends(log: Tiered) -> None:
    assert lease(log, "a") == [NONE, b"ready"] == lease(log, "a")
    assert lease(log, "b") == [NONE, b"busy"]
    # Another one's lease is not given back.
    assert lease(log, "b", 0) == [NONE, b"busy"]
    assert lease(log, "a", 0) == [NONE, b"ready"]
    assert lease(log, "b") == [NONE, b"ready"]
    log.server.hset(log.meta, "tiering", "b 1 60000")
    assert lease(log, "a") == [NONE, b"ready"]


def test_lease_of_another_topics_partition_is_not_given(log: Tiered) -> None:
    assert lease(log, "a", topic_id="f" * 32) == [GONE, b""]


def test_doomed_objects_are_due_in_time_and_can_be_taken_out(server: redis.Redis) -> None:
    def doom(after_ms: int, *texts: str) -> None:
        assert server.fcall("korvet_tier_doom", 1, DOOMED, after_ms, *texts) == [NONE]

    def due(most: int = 9) -> Any:
        return server.fcall_ro("korvet_tier_doomed", 1, DOOMED, most)

    assert due() == [NONE, []]
    doom(0, "now", "too")
    doom(60_000, "later")
    assert due() == [NONE, [b"now", b"too"]]
    assert due(1) == [NONE, [b"now"]]
    doom(60_000, "now")
    assert due() == [NONE, [b"too"]]
    for _ in range(2):
        doom(-1, "too", "later")
    assert due() == [NONE, []]
