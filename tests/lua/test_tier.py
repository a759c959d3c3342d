"""Segments of a partition: the functions korvet_tier_*, and what others make of a partition with segments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import redis

from korvet.tier.manifest import Manifest, shelf
from tests.lua.log import GONE, listening
from tests.lua.tier import SIZE, Tiered, Upload
from tests.lua.transaction import NONE

OUT_OF_RANGE, FENCED, LOST = 1, 74, -10


@pytest.fixture
def log(server: redis.Redis) -> Tiered:
    """Ten batches of ten records."""
    log = Tiered(server)
    assert log.create() == 0
    for number in range(10):
        log.put(f"b{number}", timestamp=1000 + number)
    return log


def _names(log: Tiered) -> list[str]:
    return [text.decode().split()[-1] for _, text in log.listed().segments]


# ---------------------------------------------------------------------- add


def test_first_segment_makes_the_list_and_later_ones_follow_it(log: Tiered) -> None:
    assert log.server.exists(log.tier) == 0
    one = log.upload(0, 30)
    assert log.add(one) == [0, b"added", 30, 1]
    two = log.upload(30, 70)
    assert log.add(two, "other") == [0, b"added", 70, 2]
    assert log.listed() == (0, b"token", 0, 0, 0, 70, [(30, one.text), (70, two.text)], 0)
    assert one.text == b"segment 0 15 77 1002 1002 15 99 " + one.name.encode()


def test_repeated_add_changes_nothing_however_late_it_comes(log: Tiered) -> None:
    one, two = log.seal(0, 30), log.seal(30, 70)
    assert log.drop(70) == [0, 70, 0]
    log.trim(50)
    before = log.dump()
    assert [log.add(one)[:3], log.add(two)[:3]] == [[0, b"added", 70]] * 2
    assert log.dump() == before


def test_second_tierer_learns_where_the_next_segment_begins(log: Tiered) -> None:
    mine, other = log.upload(0, 30), log.upload(0, 50)
    assert log.add(other)[1] == b"added"
    before = log.dump()
    assert log.add(mine) == [0, b"conflict", 50, 1]
    assert log.add(log.upload(60, 70)) == [0, b"conflict", 50, 1]
    assert log.dump() == before


def test_segment_above_the_last_stable_offset_is_refused_until_the_transaction_ends(log: Tiered) -> None:
    assert log.write(5, (7, 0, 0), 1_700_000_000_000_000) == (NONE, 100, 0, 0)
    one = log.upload(0, 105)
    before = log.dump()
    assert log.add(one) == [0, b"open", 0, 0]
    assert log.add(log.upload(0, 200)) == [0, b"open", 0, 0]
    assert log.dump() == before
    log.mark((7, 0), 1_700_000_000_000_000)
    assert log.add(one) == [0, b"added", 105, 1]


def test_segment_of_a_lost_history_is_refused(log: Tiered) -> None:
    saved = log.saved()
    log.put("lost")
    first, both = log.upload(100, 110), log.upload(0, 110)
    log.come_back(saved)
    assert log.add(both) == [0, b"open", 0, 0]
    log.put("kept")
    log.seal(0, 100)
    before = log.dump()
    assert log.add(first) == [0, b"changed", 100, 1]
    assert log.dump() == before
    assert log.server.zcard(log.tier) == 3


def test_equal_batch_in_a_later_epoch_is_another_history(log: Tiered) -> None:
    saved = log.saved()
    log.put("same")
    one = log.upload(0, 110)
    log.come_back(saved)
    log.put("same")
    assert log.add(one) == [0, b"changed", 0, 0]


def test_change_of_the_epoch_alone_refuses_no_segment(log: Tiered) -> None:
    one = log.upload(0, 50)
    log.run_id = "2" * 40
    assert log.take_over()[0] == 0
    assert log.add(one) == [0, b"added", 50, 1]


@pytest.mark.parametrize(("below", "status"), [(5, b"added"), (10, b"conflict"), (25, b"conflict"), (60, b"conflict")])
def test_records_deleted_between_upload_and_add(log: Tiered, below: int, status: bytes) -> None:
    """The batch of the log start stays whole, so a segment may begin below the log start."""
    one = log.upload(0, 50)
    log.trim(below)
    begins = 50 if status == b"added" else below - below % 10
    assert log.add(one)[1:3] == [status, begins]
    if status == b"conflict":
        log.seal(begins, 100)
        assert log.listed()[3:6] == (below, below, 100)


def test_records_deleted_above_the_last_segment_leave_no_hole_to_read(log: Tiered) -> None:
    one = log.seal(0, 30)
    log.trim(75)
    assert log.add(log.upload(30, 80)) == [0, b"conflict", 70, 1]
    two = log.seal(70, 100)
    assert log.listed(75).segments == [(100, two.text)]
    assert log.shelve([one.text, two.text]) == [0, b"conflict", 2]
    assert log.drop(100) == [0, 100, 0]
    assert log.forget([one.text, two.text]) == [0, 1]


def test_emptied_log_goes_on_with_a_segment_at_its_end(log: Tiered) -> None:
    log.seal(0, 100)
    log.trim(-1)
    log.put("next")
    log.seal(100, 110)
    assert log.drop(110) == [0, 110, 0]
    assert log.server.xlen(log.log) == 0
    log.put("last")
    assert log.add(log.upload(110, 120)) == [0, b"added", 120, 3]


def test_compacted_batch_refuses_a_segment(log: Tiered) -> None:
    one = log.upload(0, 50)
    log.server.xdel(log.log, "50-0")
    assert log.add(one) == [0, b"changed", 0, 0]
    two = log.upload(0, 40)
    log.server.xdel(log.log, "10-0")
    assert log.add(two) == [0, b"changed", 0, 0]


@pytest.mark.parametrize(
    "changed",
    [{"next": 0}, {"size": -1}, {"name": "a b"}, {"name": ""}, {"name": "x" * 129}, {"last_index": "1 2 3"}],
    ids=str,
)
def test_segment_that_is_none_is_an_error(log: Tiered, changed: dict[str, Any]) -> None:
    before = log.dump()
    with pytest.raises(redis.ResponseError):
        log.add(log.upload(0, 50)._replace(**changed))
    assert log.dump() == before


def test_another_topic_is_gone_for_every_function(log: Tiered) -> None:
    one = log.seal(0, 50)
    before = log.dump()
    log.topic_id = "b" * 32
    assert (log.add(one)[0], log.drop(10)[0], log.listed().code) == (GONE, GONE, GONE)
    assert (log.shelve([one.text])[0], log.forget([one.text])[0]) == (GONE, GONE)
    assert log.dump() == before


def test_add_and_local_trim_work_at_maxmemory(log: Tiered) -> None:
    one = log.upload(0, 50)
    log.server.config_set("maxmemory", 1)
    assert log.add(one)[1] == b"added"
    assert log.drop(50) == [0, 50, 0]


def test_list_that_was_deleted_by_hand_refuses_all(log: Tiered) -> None:
    one = log.seal(0, 50)
    log.server.delete(log.tier)
    before = log.dump()
    assert log.add(log.upload(50, 60)) == [LOST, b"", -1, 0]
    assert log.drop(50) == [LOST, 0, 0]
    assert log.shelve([one.text]) == [LOST, b"", 0]
    assert (log.listed().code, log.forget([one.text])) == (LOST, [0, 0])
    assert log.dump() == before


def test_list_without_its_last_or_a_middle_segment_gives_no_batch_away(log: Tiered) -> None:
    texts = [log.seal(at, at + 20).text for at in (0, 20, 40)]
    log.server.zrem(log.tier, texts[1])
    assert [log.drop(offset)[0] for offset in (20, 40, 60)] == [0, LOST, LOST]
    log.server.zrem(log.tier, texts[2])
    assert (log.add(log.upload(60, 70))[0], log.listed().code) == (LOST, LOST)
    assert log.server.xlen(log.log) == 8


# ---------------------------------------------------------------------- local trim


def test_local_trim_leaves_log_start_epochs_and_readers_alone(log: Tiered) -> None:
    log.seal(0, 70)
    before = log.meta_fields()
    with listening(log.server, log.log) as next_message:
        assert log.drop(50) == [0, 50, 0]
        assert log.meta_fields() == before | {"local_start": "50", "cleaned": "tier"}
        assert [entry.next_offset for entry in log.entries()] == [60, 70, 80, 90, 100]
        log.put("next")
        assert next_message() == b"0 110"
    assert log.drop(20) == [0, 50, 0]
    assert log.listed()[3:6] == (0, 50, 70)


@pytest.mark.parametrize(("offset", "code"), [(71, OUT_OF_RANGE), (100, OUT_OF_RANGE), (-1, OUT_OF_RANGE)])
def test_local_trim_takes_only_what_segments_hold(log: Tiered, offset: int, code: int) -> None:
    log.seal(0, 70)
    before = log.dump()
    assert log.drop(offset) == [code, 0, 0]
    assert log.dump() == before


def test_local_trim_without_segments_or_of_another_epoch_is_refused(log: Tiered) -> None:
    before = log.dump()
    assert [log.drop(0), log.drop(10)] == [[OUT_OF_RANGE, 0, 0]] * 2
    assert log.dump() == before
    log.seal(0, 70)
    log.run_id = "2" * 40
    _, epoch = log.take_over()
    assert log.drop(50) == [FENCED, 0, 0]
    assert log.drop(50, epoch) == [0, 50, 0]


def test_long_local_trim_takes_several_calls_and_a_trim_may_finish_it(log: Tiered) -> None:
    for number in range(240):
        log.put(f"c{number}")
    log.seal(0, 2500)
    assert [log.drop(2400), log.drop(2400)] == [[0, 2400, 1]] * 2
    assert log.trim(10) == [0, 10, 0]
    assert log.entries()[0].next_offset == 2410
    assert log.drop(2400) == [0, 2400, 0]


def test_local_trim_forgets_aborted_transactions_that_ended_below_it(log: Tiered) -> None:
    """Of two overlapping ones the later has its marker above; the footers of both segments name it."""
    ordinals = 1_700_000_000_000_000, 1_700_000_000_000_001
    log.write(5, (7, 0, 0), ordinals[0])
    log.write(5, (8, 0, 0), ordinals[1])
    log.mark((7, 0), ordinals[0], "abort")
    log.mark((8, 0), ordinals[1], "abort")
    log.seal(0, 111)
    log.seal(111, 112)
    assert log.drop(111) == [0, 111, 0]
    assert [aborted[:3] for aborted in log.aborted_transactions()] == [(105, 111, 8)]


def test_trim_above_the_local_start_moves_both(log: Tiered) -> None:
    log.seal(0, 70)
    log.drop(50)
    assert log.trim(30) == [0, 30, 0]
    assert log.listed()[3:6] == (30, 50, 70)
    assert log.trim(85) == [0, 85, 0]
    assert log.listed()[3:6] == (85, 85, 70)
    assert [entry.next_offset for entry in log.entries()] == [90, 100]


def test_time_is_looked_for_in_what_redis_holds(log: Tiered) -> None:
    log.seal(0, 70)
    log.drop(50)
    assert [log.at_time(timestamp).next_offset for timestamp in (0, 1005, 1009, 2000)] == [60, 60, 100, -1]


def test_search_by_time_refuses_a_local_start_of_before(log: Tiered) -> None:
    log.seal(0, 70)
    log.drop(50)
    args = (log.topic_id, 1001, -1, 1)
    search = "korvet_log_offset_for_time"
    found = [log.call(search, *args, local_start, keys=log.keys[:2])[:3] for local_start in (0, 49, 50, 60)]
    assert found == [[-5, b"none", b"-1"]] * 2 + [[0, b"found", b"60"]] * 2
    # A front-end of the version before does not say what it knows.
    assert log.call(search, *args, keys=log.keys[:2])[:3] == [0, b"found", b"60"]


# ---------------------------------------------------------------------- list


def test_list_pages_from_an_offset_on(log: Tiered) -> None:
    texts = [(at + 20, log.seal(at, at + 20).text) for at in range(0, 100, 20)]
    assert [log.listed(at).segments for at in (0, 19, 20, 99, 100)] == [texts, texts, texts[1:], texts[4:], []]
    assert (log.listed(0, 2).segments, log.listed(0, 2).more) == (texts[:2], 1)
    assert (log.listed(40, 3).segments, log.listed(40, 3).more) == (texts[2:], 0)
    assert len(log.listed(0, 0).segments) == 1


def test_partition_without_segments_has_an_empty_list(log: Tiered) -> None:
    log.trim(25)
    assert log.listed() == (0, b"", 0, 25, 25, -1, [], 0)


def _very_many(log: Tiered, count: int) -> list[Upload]:
    for _ in range(count):
        log.put(records=1)
    return [log.seal(100 + at, 101 + at) for at in range(count)]


def test_list_is_bounded_and_shelves_make_room(log: Tiered) -> None:
    log.seal(0, 100)
    many = _very_many(log, 1023)
    log.put(records=1)
    one = log.upload(1123, 1124)
    before = log.dump()
    assert log.add(one) == [0, b"full", 1123, 1024]
    assert log.dump() == before
    assert (len(log.listed(0, 2000).segments), log.listed(0, 2000).more) == (512, 1)
    assert log.drop(1123)[0] == 0
    texts = [upload.text for upload in many[:512]]
    assert log.shelve(texts) == [0, b"shelved", 513]
    assert log.add(one) == [0, b"added", 1124, 514]
    with pytest.raises(redis.ResponseError, match="at most"):
        log.shelve([upload.text for upload in many[:513]])


# ---------------------------------------------------------------------- shelve, forget


def test_shelf_takes_the_place_of_its_segments_once(log: Tiered) -> None:
    texts = [log.seal(at, at + 20).text for at in range(0, 100, 20)]
    assert log.shelve(texts[:3]) == [0, b"shelved", 3]
    shelf = b"shelf 0 30 88 1005 1005 30 55 shelf"
    assert log.listed().segments == [(60, shelf), (80, texts[3]), (100, texts[4])]
    before = log.dump()
    assert log.shelve(texts[:3]) == [0, b"shelved", 3]
    for others in (texts[:3], texts[1:3], [texts[4], texts[3]], [texts[3], texts[3]], [shelf, texts[3]]):
        assert log.shelve(others, "other") == [0, b"conflict", 3]
    assert log.dump() == before
    assert log.drop(100) == [0, 100, 0]


def test_manifest_reads_the_texts_and_makes_those_of_shelves(log: Tiered) -> None:
    for first in range(0, 40, 10):
        log.seal(first, first + 10)
    log.trim(15)
    segments = Manifest.of_listed(log.listed().segments).members
    assert [(one.first_offset, one.next_offset) for one in segments] == [(0, 10), (10, 20), (20, 30), (30, 40)]
    _, member = shelf(segments[:3], "shelf")
    log.shelve([one.text().encode() for one in segments[:3]])
    assert list(Manifest.of_listed(log.listed().segments).members) == [
        member._replace(footer_bytes=88, crc=55), segments[3],
    ]  # fmt: skip


def test_merged_segment_takes_the_place_of_small_ones_and_may_be_shelved(log: Tiered) -> None:
    texts = [log.seal(at, at + 20).text for at in range(0, 100, 20)]
    assert log.shelve(texts[1:4], "merged", "segment") == [0, b"shelved", 3]
    merged = b"segment 20 30 88 1007 1007 40 55 merged"
    assert log.listed().segments == [(20, texts[0]), (80, merged), (100, texts[4])]
    assert log.shelve([texts[0], merged]) == [0, b"shelved", 2]
    assert log.drop(100) == [0, 100, 0]


def test_record_of_the_latest_time_is_never_old(log: Tiered) -> None:
    log.put("late", timestamp=(1 << 63) - 1)
    log.seal(0, 100)
    log.seal(100, 110)
    assert log.drop(110) == [0, 110, 0]
    assert log.kept(10**13, -1) == [0, 0, 100]
    assert log.shelve([text for _, text in log.listed().segments]) == [0, b"shelved", 1]
    assert log.kept(10**13, -1) == [0, 0, 0]


def test_two_shelvers_at_once_leave_one_shelf(log: Tiered) -> None:
    texts = [log.seal(at, at + 20).text for at in range(0, 100, 20)]
    assert log.shelve(texts[:3], "one")[1] == b"shelved"
    assert log.shelve(texts[:4], "two")[1] == b"conflict"
    assert _names(log)[0] == "one"


def test_repeated_add_of_a_shelved_segment_is_a_conflict(log: Tiered) -> None:
    one = log.seal(0, 50)
    log.shelve([one.text])
    assert log.add(one) == [0, b"conflict", 50, 1]


def test_only_segments_below_the_log_start_are_forgotten(log: Tiered) -> None:
    texts = [log.seal(at, at + 20).text for at in range(0, 100, 20)]
    log.trim(45)
    assert [text for _, text in log.listed().segments] == texts
    assert log.forget([*texts, log.topic_id.encode()]) == [0, 2]
    assert log.forget(texts) == [0, 0]
    assert [text for _, text in log.listed().segments] == texts[2:]
    log.trim(-1)
    assert log.forget(texts) == [0, 3]
    assert log.listed() == (0, b"token", 0, 100, 100, 100, [], 0)
    log.put("next")
    log.seal(100, 110)


# ---------------------------------------------------------------------- deletion, recreation, damage


@pytest.mark.parametrize("batches", [0, 150])
def test_deleted_partition_leaves_no_list_and_a_new_topic_begins_at_nothing(log: Tiered, batches: int) -> None:
    for _ in range(batches):
        log.put()
    one = log.seal(0, 50)
    while log.delete() == [0, 1]:
        assert (log.add(one)[0], log.listed().code) == (GONE, GONE)
    assert log.server.exists(log.tier) == 0
    log.topic_id = "b" * 32
    assert log.create() == 0
    log.put("b0")
    assert log.listed()[3:6] == (0, 0, -1)
    former = Tiered(log.server)
    assert former.add(one)[0] == GONE


def test_upload_of_a_former_topic_of_the_name_is_gone(log: Tiered) -> None:
    one = log.upload(0, 50)
    while log.delete() == [0, 1]:
        pass
    log.topic_id = "b" * 32
    assert log.create() == 0
    for number in range(10):
        log.put(f"b{number}", timestamp=1000 + number)
    assert Tiered(log.server).add(one)[0] == GONE
    assert log.add(one)[1] == b"added"


def test_partition_of_which_only_the_list_is_left_never_begins_at_0(log: Tiered) -> None:
    log.seal(0, 50)
    log.server.delete(log.log, log.meta)
    before = log.dump()
    assert log.create() == LOST
    assert log.dump() == before
    log.server.delete(log.producers, log.open, log.aborted, log.transactions)
    assert log.create() == LOST
    log.topic_id = "b" * 32
    assert log.create() == GONE
    log.topic_id = "a" * 32
    assert log.delete() == [0, 0]
    assert log.create() == 0


def test_lost_meta_hash_comes_back_with_the_segments(log: Tiered) -> None:
    log.seal(0, 50)
    log.seal(50, 70)
    log.drop(60)
    log.trim(35)
    log.server.delete(log.meta)
    assert log.create() == 0
    assert log.listed() == (0, b"token", 0, 35, 60, 70, log.listed().segments, 0)
    assert log.meta_fields()["epochs"] == "0:60"
    log.seal(70, 100)
    assert log.listed().token == b"token"


def test_lost_meta_hash_of_an_emptied_log_comes_back_with_its_end(log: Tiered) -> None:
    texts = [log.seal(0, 50).text, log.seal(50, 100).text]
    log.drop(100)
    log.server.delete(log.meta)
    assert log.create() == 0
    assert log.listed()[3:6] == (0, 100, 100)
    assert log.meta_fields()["totals"] == "1009 50 0"
    log.trim(-1)
    log.forget(texts)
    log.server.delete(log.meta)
    assert log.create() == 0
    assert log.listed()[3:6] == (100, 100, 100)
    log.put("next")
    log.seal(100, 110)


def test_lost_meta_hash_of_a_log_that_begins_within_a_batch_leaves_that_for_the_next_segment(log: Tiered) -> None:
    one = log.seal(0, 30)
    log.trim(35)
    log.forget([one.text])
    log.server.delete(log.meta)
    assert log.create() == 0
    assert log.listed()[3:6] == (35, 35, 30)
    log.seal(30, 50)


def test_list_of_another_topic_beside_a_log_without_its_meta_hash_is_gone(log: Tiered) -> None:
    log.seal(0, 50)
    log.server.delete(log.meta)
    log.topic_id = "b" * 32
    before = log.dump()
    assert log.create() == GONE
    assert log.dump() == before


def test_compaction_leaves_a_partition_with_segments_alone(log: Tiered) -> None:
    """Another front-end may have begun it before the first segment."""
    keys = (*log.keys[:3], f"{log.log}:spare")
    assert log.call("korvet_log_compaction_begin", log.topic_id, "one", 30_000, keys=keys) == [0, b"ready"]
    seen = (log.topic_id, log.run_id, 0, 0, "one")
    assert log.call("korvet_log_compaction_copy", *seen, 0, 0, 100, SIZE, 1, "20", keys=keys) == [0, b"ready", 9]
    log.seal(0, 50)
    before = log.dump()
    swap = log.call("korvet_log_compaction_swap", *seen, 9, 100, 0, 100, keys=(*keys, log.aborted))
    assert swap[:2] == [0, b"lost"]
    assert log.dump() == before


def test_list_of_the_wrong_type_keeps_no_partition_from_being_deleted(log: Tiered) -> None:
    log.seal(0, 50)
    log.server.delete(log.tier)
    log.server.set(log.tier, "text")
    before = log.dump()
    for call in (lambda: log.trim(20), lambda: log.drop(20), lambda: log.add(log.upload(50, 60))):
        with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
            call()
    assert log.dump() == before
    assert log.delete() == [0, 0]
    assert log.server.exists(log.tier) == 0


# ---------------------------------------------------------------------- cost


def _calls(server: redis.Redis, work: Callable[[], object]) -> dict[str, int]:
    """The commands that a function runs."""
    server.config_resetstat()
    work()
    stats: Any = server.info("commandstats")
    names = {name.removeprefix("cmdstat_"): found["calls"] for name, found in stats.items()}
    return {name: calls for name, calls in names.items() if name.split("|")[0] not in ("config", "fcall", "info")}


def test_partition_without_segments_costs_what_it_did(log: Tiered) -> None:
    trim = {"hmget": 1, "zcard": 1, "xrange": 2, "hset": 1, "spublish": 1, "zrangebyscore": 1, "zremrangebyscore": 1}
    assert _calls(log.server, lambda: log.put()) == {"hmget": 1, "xadd": 1, "hset": 1, "spublish": 1}
    assert _calls(log.server, lambda: log.trim(10)) == trim | {"xtrim": 1}
    assert set(log.saved()) == set(log.keys)


def test_local_trim_keeps_few_epochs_below_the_local_start(log: Tiered) -> None:
    many = ",".join(f"{epoch}:{epoch // 2}" for epoch in range(1, 160)) + ",200:79,300:90"
    log.seal(0, 90)
    log.server.hset(log.meta, "epochs", many)
    assert log.drop(80) == [0, 80, 0]
    kept = log.meta_fields()["epochs"].split(",")
    assert kept == many.split(",")[-101:]
    assert log.drop(90) == [0, 90, 0]
    assert log.meta_fields()["epochs"].split(",") == kept


def test_compaction_that_ends_late_leaves_the_word_for_older_front_ends(log: Tiered) -> None:
    """It began before the first segment, and found nothing to change."""
    keys = (*log.keys[:3], f"{log.log}:spare")
    assert log.call("korvet_log_compaction_begin", log.topic_id, "token", 1000, keys=keys)[1] == b"ready"
    log.seal(0, 50)
    assert log.drop(50) == [0, 50, 0]
    meta = log.meta_fields()
    args = (log.topic_id, "token", meta["run_id"], meta["epoch"], 100)
    assert log.call("korvet_log_compaction_end", *args, keys=keys) == [0, 0]
    assert log.meta_fields()["cleaned"] == "tier"
