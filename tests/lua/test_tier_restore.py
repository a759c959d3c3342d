"""A partition that is restored from its snapshot: korvet_tier_restore."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
import redis

from tests.lua.log import GONE
from tests.lua.tier import Tiered

LOST = -10


class Facts(NamedTuple):
    """What a snapshot has of a partition."""

    epoch: int
    epochs: str
    start: int
    tier_end: int
    segments: list[tuple[int, bytes]]


@pytest.fixture
def log(server: redis.Redis) -> Tiered:
    """Ten batches of ten records."""
    log = Tiered(server)
    assert log.create() == 0
    for number in range(10):
        log.put(f"b{number}", timestamp=1000 + number)
    return log


def facts(log: Tiered) -> Facts:
    """A snapshot of now."""
    listed = log.listed()
    epochs: Any = log.server.hget(log.meta, "epochs")
    return Facts(listed.epoch, epochs.decode(), listed.start, listed.tier_end, listed.segments)


def restore(log: Tiered, of: Facts, *, step: str = "restore", token: str = "token") -> list[Any]:
    """Code, status, log start, log end, more."""
    flat: list[str | int | bytes] = [part for one in of.segments for part in one]
    args = (log.topic_id, step, token, of.epoch, of.epochs, of.start, of.tier_end, *flat)
    reply: list[Any] = log.call("korvet_tier_restore", *args, keys=(*log.keys, log.tier))
    return reply


def test_empty_redis_gets_the_partition_back_and_goes_on_behind_the_tier(log: Tiered) -> None:
    log.seal(0, 30)
    log.seal(30, 70)
    log.trim(15)
    of = facts(log)
    log.server.flushall()
    assert restore(log, of, step="look") == [0, b"create", -1, -1, 0]
    assert log.dump() == {}
    assert restore(log, of) == [0, b"create", -1, -1, 0]
    assert log.listed()[3:6] == (15, 70, 70)
    assert log.listed().segments == of.segments
    # Front-ends without segments would skip all of these.
    assert log.meta_fields()["cleaned"] == "tier"
    assert log.take_over()[0] == 0
    now = facts(log)
    assert now.epoch > of.epoch
    assert now.epochs == f"0:15,{now.epoch}:70"
    assert log.put("new") == 70
    assert log.index_at(80).split()[3:5] == ["1006", "40"]
    log.seal(70, 80)


def test_restoration_may_be_repeated_and_changes_nothing_then(log: Tiered) -> None:
    log.seal(0, 30)
    of = facts(log)
    log.server.flushall()
    restore(log, of)
    before = log.dump()
    assert restore(log, of) == [0, b"whole", 0, 30, 0]
    assert log.dump() == before
    log.take_over()
    log.put("new")
    before = log.dump()
    assert restore(log, of)[1] == b"whole"
    assert log.dump() == before


def test_list_from_before_a_merge_becomes_the_merged_one(log: Tiered) -> None:
    for first in (0, 30, 40):
        log.seal(first, first + (30 if first == 0 else 10))
    small, before = facts(log), log.saved()
    assert log.shelve([text for _, text in small.segments[1:]], "merged", "segment")[:2] == [0, b"shelved"]
    # A merge that no snapshot has yet stays.
    assert restore(log, small)[1] == b"whole"
    of = facts(log)
    log.come_back(before)
    log.trim(20)
    assert restore(log, of) == [0, b"list", 20, 100, 0]
    assert log.listed().segments == of.segments
    assert restore(log, of)[1] == b"whole"


def test_redis_that_went_back_gives_no_offset_a_second_content(log: Tiered) -> None:
    log.seal(0, 30)
    saved = log.saved()
    for number in range(10):
        log.put(f"c{number}")
    log.seal(30, 180)
    of = facts(log)
    log.come_back(saved)
    assert restore(log, of) == [0, b"move", 0, 100, 0]
    assert log.listed()[3:6] == (0, 180, 180)
    assert log.server.xlen(log.log) == 0
    log.take_over()
    assert log.put("new") == 180
    assert facts(log).epochs.startswith("0:0,")


def test_log_that_reaches_the_tiers_end_keeps_its_own_part(log: Tiered) -> None:
    saved = log.saved()
    log.seal(0, 30)
    of = facts(log)
    log.come_back(saved)
    assert restore(log, of) == [0, b"list", 0, 100, 0]
    assert log.listed()[3:6] == (0, 0, 30)
    assert log.server.xlen(log.log) == 10
    assert restore(log, of)[1] == b"whole"


def test_lost_list_of_segments_comes_back_from_the_snapshot(log: Tiered) -> None:
    log.seal(0, 30)
    of = facts(log)
    log.drop(30)
    log.server.delete(log.tier)
    assert log.listed().code == LOST
    assert restore(log, of) == [0, b"list", 0, 100, 0]
    assert log.listed()[3:6] == (0, 30, 30)
    log.seal(30, 70)


def test_list_that_lost_segments_which_the_snapshot_lacks_is_not_replaced_by_a_hole(log: Tiered) -> None:
    log.seal(0, 30)
    of = facts(log)
    log.seal(30, 70)
    log.drop(50)
    log.server.delete(log.tier)
    before = log.dump()
    assert restore(log, of)[1] == b"conflict"
    assert log.dump() == before


def test_records_that_were_written_since_redis_went_back_are_not_dropped(log: Tiered) -> None:
    saved = log.saved()
    log.put("lost")
    log.seal(0, 110)
    of = facts(log)
    log.come_back(saved)
    log.take_over()
    log.put("other")
    before = log.dump()
    assert restore(log, of) == [0, b"conflict", 0, 110, 0]
    assert log.dump() == before


def test_list_of_another_history_is_not_replaced(log: Tiered) -> None:
    log.seal(0, 30)
    of = facts(log)._replace(tier_end=70)
    of.segments.append((70, log.upload(30, 70).text))
    before = log.dump()
    assert restore(log, of, token="other")[1] == b"conflict"
    assert log.dump() == before


def test_open_transactions_are_gone_after_a_move(log: Tiered) -> None:
    assert log.write(5, (7, 0, 0), 1_700_000_000_000_000)[0] == 0
    saved = log.saved()
    log.mark((7, 0), 1_700_000_000_000_000, "abort")
    log.seal(0, 106)
    of = facts(log)
    log.come_back(saved)
    assert restore(log, of)[:2] == [0, b"move"]
    log.take_over()
    assert log.server.zcard(log.open) == 1
    assert log.server.hget(log.meta, "first_open") is None
    assert log.put("new") == 106


def test_other_topics_keys_are_left_alone(log: Tiered) -> None:
    log.seal(0, 30)
    of = facts(log)
    log.topic_id = "f" * 32
    before = log.dump()
    assert restore(log, of)[0] == GONE
    log.server.delete(log.meta)
    assert restore(log, of)[0] == GONE
    assert set(before) - set(log.dump()) == {log.meta}


@pytest.mark.parametrize("kept", [[1], [0], []])
def test_members_with_a_gap_restore_nothing(log: Tiered, kept: list[int]) -> None:
    log.seal(0, 30)
    log.seal(30, 70)
    of = facts(log)
    log.server.flushall()
    assert restore(log, of._replace(segments=[of.segments[at] for at in kept]))[0] == LOST
    assert log.dump() == {}


def test_all_records_deleted_above_the_tier_stay_deleted(log: Tiered) -> None:
    log.seal(0, 30)
    log.trim(75)
    of = facts(log)
    log.server.flushall()
    assert restore(log, of)[:2] == [0, b"create"]
    log.take_over()
    assert log.put("new") == 75
    assert log.listed()[3:6] == (75, 75, 30)
    log.forget([text for _, text in of.segments])
    log.seal(75, 85)


def test_redis_that_went_back_before_the_deletion_of_all_records_goes_on_behind_them(log: Tiered) -> None:
    log.seal(0, 30)
    saved = log.saved()
    log.put("lost")
    log.trim(110)
    of = facts(log)
    log.come_back(saved)
    assert restore(log, of)[:4] == [0, b"move", 0, 100]
    log.take_over()
    assert log.put("new") == 110
    assert log.listed()[3:6] == (110, 110, 30)


def test_largest_list_is_restored(log: Tiered) -> None:
    segments = [(at + 1, b"segment %d 5 77 1000 1000 %d 99 n%d" % (at, 5 * at, at)) for at in range(1025)]
    log.server.flushall()
    assert restore(log, Facts(3, "3:0", 0, 1025, segments)) == [0, b"create", -1, -1, 0]
    assert log.server.zcount(log.tier, 0, "+inf") == 1025


def test_long_log_below_the_tiers_end_goes_in_several_calls(log: Tiered) -> None:
    for number in range(250):
        log.put(f"{number}")
    saved = log.saved()
    log.put("last")
    log.seal(0, 2610)
    of = facts(log)
    log.come_back(saved)
    assert restore(log, of) == [0, b"move", 0, 2600, 1]
    calls = 0
    while restore(log, of)[4]:
        calls += 1
    assert calls <= 3
    assert log.server.xlen(log.log) == 0


def test_records_of_a_history_that_was_lost_are_not_kept_beside_the_tiers(log: Tiered) -> None:
    """A backup of a history that Redis lost later."""
    saved = log.saved()
    log.put("lost")
    backup = log.saved()
    log.come_back(saved)
    log.take_over()
    log.put("kept")
    log.seal(0, 110)
    of = facts(log)
    log.come_back(backup)
    assert restore(log, of) == [0, b"move", 0, 110, 0]
    assert log.listed()[3:6] == (0, 110, 110)
    assert log.server.xlen(log.log) == 0
