"""The plan of an archive: where a batch begins and ends, the proof after it, losses, and the tables that follow."""

from __future__ import annotations

from typing import Any

import pytest

from korvet.pipeline.plan.batch import Batch, capped, limited, planned, position
from korvet.pipeline.plan.history import compared, describe, describe_trimmed, moved, skipped, trimmed
from korvet.pipeline.plan.losses import MOST_RANGES, Loss, UnreadableRange, joined
from korvet.pipeline.plan.positions import Position, Topic
from korvet.pipeline.plan.proofs import Proven, followed, had, lacking, within

TOPIC = Topic(name="t", id="id", partitions=(0, 1, 2))


def proven(*offsets: int, **others: Any) -> Proven:
    return Proven(topic="t", topic_id="id", generation=1, batch_id=4, offsets=dict(enumerate(offsets)), **others)


def ends(*positions: tuple[int, int | None]) -> dict[int, Position]:
    return {number: Position(offset=end, leader_epoch=epoch) for number, (end, epoch) in enumerate(positions)}


def lost(start: int, end: int, **others: Any) -> Loss:
    return Loss(**{"partition": 0, "kind": "trimmed", "start": start, "end": end, **others})


def test_batch_begins_where_the_proof_ends_and_ends_at_the_topics_end_or_before() -> None:
    now = ends((9, 3), (5, None), (7, 3))
    # The schedule asked earlier, and partition 3 is gone.
    wanted = capped({0: 12, 1: 4, 2: 7, 3: 1}, now)
    assert wanted == {0: 9, 1: 4, 2: 7}
    has, begins = proven(6, 4), {0: 6, 1: 4, 2: 5}
    assert begins == {number: position(has, {1: 3, 2: 5}, number) for number in wanted}
    assert position(has, {}, 2) == position(None, {}, 0) == -1
    batch = planned(begins, wanted, now, has, None)
    assert batch == Batch(id=5, begins={0: 6, 1: 4, 2: 5}, ends={0: 9, 1: 4, 2: 7}, leader_epochs={0: 3, 2: 3})
    assert batch.behind(ends((10, 3), (9, None), (7, 3), (2, 0))) == 1 + 5 + 0 + 2
    small = planned(begins, wanted, now, has, 2)
    assert small is not None and small.ends == {0: 7, 1: 4, 2: 6}
    first = planned({0: 1}, {0: 2}, now, None, None)
    assert first is not None and (first.id, first.begins) == (0, {0: 1})
    assert planned({0: 9, 1: 5, 2: 7}, wanted, now, has, 1) is None and planned({}, {}, now, None, None) is None


@pytest.mark.parametrize("most", [1, 2, 3, 7, 100])
def test_small_batches_come_to_the_end_of_every_partition(most: int) -> None:
    begins, wanted = {0: 0, 1: 10, 2: 5}, {0: 50, 1: 11, 2: 5}
    for _ in range(200):
        found = limited(begins, wanted, most)
        assert all(begins[number] <= found[number] <= wanted[number] for number in wanted)
        # Each small partition gets one more.
        assert sum(found.values()) - sum(begins.values()) <= most + len(wanted)
        begins = found
    assert begins == wanted


def test_proof_after_a_batch_is_no_lower_and_keeps_what_is_lost() -> None:
    gone = UnreadableRange(partition=0, start=7, end=8, reason="no gzip")
    batch = Batch(
        id=5, begins={0: 6}, ends={0: 9}, leader_epochs={0: 3, 1: 4}, losses=(lost(6, 7),), unreadable=(gone,)
    )
    has = proven(6, 5, leader_epochs={0: 2, 1: 2}, losses=(lost(1, 2),), is_claim=True)
    after = batch.proven(TOPIC, has, "writer")
    assert (after.topic, after.topic_id, after.batch_id, after.checkpoint) == ("t", "id", 5, "writer")
    assert (after.offsets, after.leader_epochs, after.is_claim) == ({0: 9, 1: 5}, {0: 3, 1: 2}, False)
    assert after.losses == (lost(1, 2), lost(6, 7), lost(7, 8, kind="unreadable"))
    shorter = batch.without([gone], {0: 8}).proven(TOPIC, None, "writer")
    assert (shorter.offsets, shorter.losses) == ({0: 8}, (lost(6, 7), lost(7, 8, kind="unreadable")))


def test_following_table_lacks_what_the_raw_one_has_above_its_proof() -> None:
    assert lacking(proven(5, 7), proven(5, 9, 3)) == {1: (7, 9), 2: (0, 3)}
    assert lacking(proven(6), proven(5)) == {} and lacking(proven(), proven()) == {}
    assert had(proven(5, 0), proven(3, 9)) == {0: (0, 3)}
    assert within({1: (7, 9), 2: (0, 3)}) == (
        "(partition = 1 and offset >= 7 and offset < 9) or (partition = 2 and offset >= 0 and offset < 3)"
    )
    assert within({}) == "false"


def test_proof_of_a_following_table_goes_no_lower() -> None:
    raw = proven(5, 9, leader_epochs={0: 1, 1: 1}, checkpoint="other", is_claim=True)
    found = followed(proven(7, 2, leader_epochs={0: 4, 1: 4}), raw, "writer")
    assert (found.offsets, found.leader_epochs) == ({0: 7, 1: 9}, {0: 4, 1: 1})
    assert (found.checkpoint, found.is_claim) == ("writer", False)
    assert followed(None, raw, "writer").offsets == raw.offsets


def test_history_parts_below_a_lower_end_and_an_epoch_that_differs_is_looked_up() -> None:
    has = proven(4, 4, 4, 4, leader_epochs={0: 1, 1: 1, 3: 1})
    parted, asked = compared(has, {**ends((9, 1), (3, 2), (3, 2)), 4: Position(offset=0, leader_epoch=0)})
    assert (parted, asked) == ({2: 3}, {1: Position(offset=4, leader_epoch=1)})
    assert compared(has, ends((3, 1), (4, 1), (4, None), (4, 1))) == ({0: 3}, {})


def test_archive_goes_on_below_a_loss_and_above_trimmed_records() -> None:
    has, now = proven(4, 7, leader_epochs={0: 1, 1: 1}, losses=(lost(0, 1),)), ends((6, 2), (9, None))
    replaced = moved(has, {0: 2, 1: 8}, "replaced", now)
    assert (replaced.offsets, replaced.leader_epochs, replaced.batch_id) == ({0: 2, 1: 7}, {0: 2}, -1)
    assert replaced.losses == (lost(2, 4, kind="replaced"), lost(0, 1))
    starts = trimmed(has, {0: 6, 1: 7, 2: 5})
    assert starts == {0: 6}
    gone = moved(has, starts, "trimmed", now)
    assert (gone.offsets, gone.losses) == ({0: 6, 1: 7}, (lost(0, 1), lost(4, 6)))
    assert "partition 0 has another history from offset 2 on, archived is up to 4" in describe("t", has.offsets, {0: 2})
    assert "partition 0 begins at offset 6, archived is up to 4" in describe_trimmed("t", has.offsets, starts)


def test_records_trimmed_while_a_batch_was_read_are_those_before_its_first_one() -> None:
    begins, now = {0: 2, 1: 0, 2: 3}, {0: 9, 1: 4, 2: 6}
    assert skipped(begins, now, {0: 5, 1: 0, 2: 8}, {0: 4, 1: 1}) == (lost(2, 4), lost(3, 6, partition=2))
    # What was trimmed after it was read is there.
    assert skipped(begins, now, {0: 9, 1: 4, 2: 6}, {0: 2, 1: 0, 2: 3}) == ()


def test_proof_keeps_few_ranges_of_losses_and_loses_none() -> None:
    other = lost(0, 9, kind="replaced")
    assert joined([lost(4, 6), other, lost(0, 2), lost(2, 3)]) == (other, lost(0, 3), lost(4, 6))
    many = joined(lost(start, start + 1) for start in range(0, 100, 2))
    assert len(many) == MOST_RANGES
    assert (many[0], many[1], many[-1]) == (lost(0, 81), lost(82, 83), lost(98, 99))
    known = proven(99, losses=many)
    assert Proven.from_json(known.to_json()) == known
