"""A partition's sender goes on where the last transaction ended, and its successor fences it."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import pyarrow as pa
import pytest
from confluent_kafka import Producer, TopicPartition

from korvet.pipeline.broker import Broker, Position
from korvet.pipeline.errors import PipelineError
from korvet.pipeline.replay import task
from korvet.pipeline.replay.chunk import Chunk
from korvet.pipeline.replay.planning import _BUFFER, _new_run
from korvet.pipeline.replay.positions import GROUP_PREFIX, Note, Positions, Progress
from korvet.pipeline.replay.sending import Fenced, Sender, TakenOver, Target
from korvet.pipeline.replay.stopping import request_stop
from tests.pipeline.replaying import BEGIN_MS, read_topic
from tests.support.broker import KorvetServer, running_broker

NO_SETTINGS: Mapping[str, str] = MappingProxyType({})


def new_target(
    broker: KorvetServer, topic_settings: Mapping[str, str] = NO_SETTINGS, timeout_ms: int = 60_000
) -> Target:
    """A replay into a new topic of two partitions."""
    topic = f"sending-{uuid.uuid4().hex[:8]}"
    address = {"bootstrap.servers": broker.bootstrap}
    with Broker(address) as admin:
        admin.create_topic(topic, 2, {"retention.ms": "-1", **topic_settings})
        note = Note(job="job", version=0, topic_id=admin.topics([topic])[topic].id, run="first", records=0)
    settings = {**address, "transaction.timeout.ms": str(timeout_ms)}
    return Target(settings=settings, producer={}, name=topic, topic=topic, note=note)


def chunk(first: int, count: int) -> Chunk:
    """Records of these offsets, each with its offset as value."""
    offsets = list(range(first, first + count))
    return Chunk(
        offsets=offsets,
        keys=[None] * count,
        values=[str(offset).encode() for offset in offsets],
        headers=[None] * count,
        timestamps=[BEGIN_MS] * count,
    )


def offsets(broker: KorvetServer, target: Target) -> list[int]:
    """The values of the records in partition 0."""
    found = read_topic(broker.bootstrap, target.topic).get(0, [])
    return [int(value) for _, value, _, _ in found if value is not None]


def batch(*offsets: int, large: tuple[int, ...] = ()) -> pa.RecordBatch:
    """Rows as a task gets them, as far as it looks at them before it takes them; large ones have no time."""
    times = pa.array([None if offset in large else 1000 + offset for offset in offsets], pa.int64())
    return pa.RecordBatch.from_pydict({"offset": pa.array(offsets, pa.int64()), "ms": times})


def test_next_sender_goes_on_after_the_last_transaction(broker: KorvetServer) -> None:
    target = new_target(broker)
    with Sender(target, 0, 5) as first:
        first.init_transactions()
        assert first.position == 5
        first.send(chunk(5, 10))
    with Sender(target, 0, 5) as second, Positions(target.settings, target.name, target.topic) as positions:
        second.init_transactions()
        assert second.position == 15
        assert second.send(chunk(5, 20)) == 10
        assert second.send(chunk(5, 20)) == 0
        assert positions.read([0, 1], target.note.topic_id)[0].note.records == 20
    assert offsets(broker, target) == list(range(5, 25))


@pytest.mark.parametrize("count", [10, task.MOST_RECORDS])
def test_sender_with_a_successor_is_fenced_and_writes_nothing(broker: KorvetServer, count: int) -> None:
    target = new_target(broker)
    with Sender(target, 0, 0) as old, Sender(target, 0, 0) as new:
        old.init_transactions()
        old.send(chunk(0, 10))
        new.init_transactions()
        with pytest.raises(Fenced):
            old.send(chunk(10, count))
        new.send(chunk(10, 5))
        old.follow()
        assert old.position == 15
    assert offsets(broker, target) == list(range(15))


def test_sender_waits_for_a_position_on_its_way(broker: KorvetServer) -> None:
    target = new_target(broker)
    pending = Producer({**target.settings, "transactional.id": target.name})
    pending.init_transactions()
    with Sender(target, 0, 0) as sender, Positions(target.settings, target.name, target.topic) as positions:
        # The broker lists a group once it has an offset.
        pending.begin_transaction()
        first = TopicPartition(target.topic, 0, 3, target.note.to_json())
        pending.send_offsets_to_transaction([first], positions.group)
        pending.commit_transaction()
        pending.begin_transaction()
        note = TopicPartition(target.topic, 0, 7, target.note.to_json())
        pending.send_offsets_to_transaction([note], positions.group)
        beginning = threading.Thread(target=sender.init_transactions)
        beginning.start()
        beginning.join(1)
        with Broker(target.settings) as admin:
            later = threading.Timer(1, pending.commit_transaction)
            later.start()
            group = GROUP_PREFIX + target.name
            assert admin.committed(group, stable=True)[target.topic, 0].offset == 7
            later.join()
        beginning.join(60)
        assert sender.position == 7


class Slow(Sender):
    """A sender whose first transaction is open for too long."""

    is_first = True

    def commit(self, producer: Producer, position: list[TopicPartition]) -> None:
        if self.is_first:
            self.is_first = False
            producer.flush()
            time.sleep(3)
        super().commit(producer, position)


def test_sender_repeats_a_transaction_that_took_too_long(broker: KorvetServer) -> None:
    target = new_target(broker, timeout_ms=1500)
    with Slow(target, 0, 0) as sender:
        sender.init_transactions()
        sender.send(chunk(0, 10))
        sender.send(chunk(10, 10))
    assert offsets(broker, target) == list(range(20))


class Untold(Sender):
    """A sender that does not learn of its first commit."""

    is_first = True

    def commit(self, producer: Producer, position: list[TopicPartition]) -> None:
        super().commit(producer, position)
        if self.is_first:
            self.is_first = False
            # The transaction is over, so this fails like a commit whose answer was lost.
            producer.commit_transaction()


def test_sender_does_not_repeat_a_commit_whose_answer_was_lost(broker: KorvetServer) -> None:
    target = new_target(broker)
    with Untold(target, 0, 0) as sender:
        sender.init_transactions()
        assert sender.send(chunk(0, 10)) == 10
        sender.send(chunk(10, 10))
    assert offsets(broker, target) == list(range(20))


class Burdened(Sender):
    """A sender over a slow connection: a transaction of many records takes longer than it may be open."""

    def commit(self, producer: Producer, position: list[TopicPartition]) -> None:
        if position[0].offset - self.position > 200:
            producer.flush()
            time.sleep(3)
        super().commit(producer, position)


def test_transaction_that_takes_too_long_comes_again_in_smaller_ones(broker: KorvetServer) -> None:
    target = new_target(broker, timeout_ms=1500)
    with Burdened(target, 0, 0) as sender:
        sender.init_transactions()
        assert sender.send(chunk(0, 1000)) == 1000
        assert sender.position == 1000
    assert offsets(broker, target) == list(range(1000))


class Unlucky(Sender):
    """A sender whose first transactions fail at once, as in an outage; it counts its transactions."""

    commits = 0

    def commit(self, producer: Producer, position: list[TopicPartition]) -> None:
        self.commits += 1
        if self.commits <= 3:
            producer.abort_transaction()
            # Nothing is open, so this fails.
            producer.commit_transaction()
        super().commit(producer, position)


def test_transaction_that_fails_at_once_comes_again_as_large_as_it_was(broker: KorvetServer) -> None:
    target = new_target(broker)
    with Unlucky(target, 0, 0) as sender:
        sender.init_transactions()
        assert sender.send(chunk(0, 1000)) == 1000
        assert sender.commits == 4
    assert offsets(broker, target) == list(range(1000))


def test_transaction_fits_whatever_queue_a_client_sets(broker: KorvetServer) -> None:
    target = new_target(broker)
    settings = {**target.settings, "queue.buffering.max.messages": "5"}
    target = replace(target, settings=settings, producer=_BUFFER)
    with Sender(target, 0, 0) as sender:
        sender.init_transactions()
        sender.send(chunk(0, 1000))
    assert offsets(broker, target) == list(range(1000))


def test_record_that_the_topic_refuses_leaves_no_open_transaction(broker: KorvetServer) -> None:
    target = new_target(broker, {"message.timestamp.before.max.ms": "1000"})
    with Sender(target, 0, 0) as sender:
        sender.init_transactions()
        old = Chunk(offsets=[0], keys=[b"k"], values=[b"v"], headers=[None], timestamps=[1000])
        with pytest.raises(PipelineError, match=rf"{target.topic}-0 from 0 on .*message\.timestamp\.before\.max\.ms"):
            sender.send(old)
    with Broker(target.settings) as admin:
        key = (target.topic, 0)
        ends = [admin.latest([key], committed_only=each)[key].offset for each in (True, False)]
    assert ends[0] == ends[1]
    assert offsets(broker, target) == []


def test_sender_refuses_a_position_below_its_own(broker: KorvetServer) -> None:
    target = new_target(broker)
    with Sender(target, 0, 0) as first, Sender(target, 0, 10) as second:
        first.init_transactions()
        first.send(chunk(0, 3))
        with pytest.raises(PipelineError, match="was replayed up to 10, and its group says 3"):
            second.init_transactions()


def test_positions_of_a_group_that_is_no_replays_are_refused(broker: KorvetServer) -> None:
    target = new_target(broker)
    with Sender(target, 0, 100) as sender:
        sender.init_transactions()
        sender.send(chunk(100, 1))
        with Broker(target.settings) as admin:
            admin.commit(GROUP_PREFIX + target.name, {(target.topic, 0): Position(offset=3, leader_epoch=None)})
        with pytest.raises(PipelineError, match="is not a replay's"):
            sender.init_transactions()


def test_positions_of_a_deleted_topic_do_not_count(broker: KorvetServer) -> None:
    target = new_target(broker)
    with Sender(target, 0, 0) as sender, Positions(target.settings, target.name, target.topic) as positions:
        sender.init_transactions()
        sender.send(chunk(0, 3))
        assert positions.read([0], target.note.topic_id)[0].offset == 3
        assert positions.read([0], "another") == {}


def test_fenced_attempt_waits_for_its_successor(broker: KorvetServer) -> None:
    target = new_target(broker)
    plan = task.Plan(target=target, starts={}, ends={}, rate=None, at_once=1)
    with Sender(target, 0, 0) as old, Sender(target, 0, 0) as new:
        old.init_transactions()
        new.init_transactions()
        new.send(chunk(0, 10))
        waiting = threading.Thread(target=task.follow, args=(old, plan, 0, 20))
        waiting.start()
        assert waiting.is_alive()
        new.send(chunk(10, 10))
        waiting.join(60)
        assert not waiting.is_alive()


def test_end_of_a_partition_is_after_rows_that_nobody_took() -> None:
    rows = task.Rows([batch(1, 2), batch(), batch(4), batch(7, 9)])
    for taken in rows:
        if taken.num_rows == 1:
            break
    assert rows.end() == 10
    assert rows.end() == 10
    assert not rows.is_cut


@pytest.mark.parametrize("large", [(), (1,), (4,), (7, 9), (9,)])
def test_rows_end_before_the_first_large_one(large: tuple[int, ...]) -> None:
    offsets = (1, 2, 4, 7, 9)
    left = [each for each in offsets if not large or each < large[0]]
    rows = task.Rows([batch(1, 2, large=large), batch(), batch(4, large=large), batch(7, 9, large=large)])
    assert [each for taken in rows for each in taken.column("offset").to_pylist()] == left
    assert rows.is_cut == bool(large)
    assert rows.end() == (left[-1] + 1 if left else 0)


def test_second_start_of_a_replay_ends_the_first(broker: KorvetServer) -> None:
    target = new_target(broker)
    plan = task.Plan(target=target, starts={}, ends={}, rate=None, at_once=1)
    second = replace(target, note=replace(target.note, run="second"))
    with Sender(target, 0, 0) as old, Sender(second, 0, 0) as new:
        old.init_transactions()
        new.init_transactions()
        new.send(chunk(0, 10))
        with pytest.raises(TakenOver, match="was started a second time"):
            task.follow(old, plan, 0, 20)
        # The first does not fence the second at a partition that it had not begun.
        with Sender(target, 0, 0) as late, pytest.raises(TakenOver, match=r"goes on with .*-0 from 10 on"):
            late.init_transactions()
        new.send(chunk(10, 10))
    assert offsets(broker, target) == list(range(20))


def test_run_goes_on_after_a_last_write_of_an_earlier_run(broker: KorvetServer) -> None:
    target = new_target(broker)
    second = replace(target, note=replace(target.note, run="second"))
    with Sender(target, 0, 0) as old, Sender(second, 0, 0) as new:
        old.init_transactions()
        old.send(chunk(0, 10))
        new.init_transactions()
        new.send(chunk(0, 20))
    assert offsets(broker, target) == list(range(20))


def test_run_is_later_than_its_predecessors_though_the_clock_went_back() -> None:
    year_2100 = f"{4_102_444_800 * 10**9:016x}{uuid.uuid4().hex}"
    note = Note(job="job", version=0, topic_id="id", run=year_2100, records=0)
    first, second = _new_run({}), _new_run({0: Progress(offset=5, note=note)})
    assert first < year_2100 < second < _new_run({1: Progress(offset=5, note=replace(note, run=second))})


def test_second_replay_of_one_name_is_refused(broker: KorvetServer) -> None:
    target = new_target(broker)
    other = replace(target, note=replace(target.note, job="another"))
    with Sender(target, 0, 0) as first, Sender(other, 0, 10) as second:
        first.init_transactions()
        first.send(chunk(0, 5))
        with pytest.raises(PipelineError, match="also runs with another table or range; choose another name"):
            second.init_transactions()


def test_reader_of_positions_waits_while_storage_is_away(tmp_path: Path) -> None:
    with running_broker(directory=tmp_path) as broker:
        target = new_target(broker)
        with Sender(target, 0, 0) as sender, Positions(target.settings, target.name, target.topic) as positions:
            sender.init_transactions()
            sender.send(chunk(0, 1))
            broker.kill_embedded()
            assert positions.read([0], target.note.topic_id)[0].offset == 1


def test_unfinished_partitions_share_the_rate(broker: KorvetServer) -> None:
    target = new_target(broker)
    plan = task.Plan(target=target, starts={}, ends={0: 100, 1: 10}, rate=40.0, at_once=2)
    began = time.monotonic()
    with Broker(target.settings) as admin:
        pace = task.Pace(plan, admin)
        assert pace.most() == 20
        with Sender(target, 1, 0) as other:
            other.init_transactions()
            other.send(chunk(0, 10))
        for _ in range(3):
            assert not pace.is_over()
            pace.sent(20, 0.1)
        assert time.monotonic() - began >= 0.9
        assert pace.most() == 40
        # Word to another run does not count.
        assert request_stop(admin, replace(target, note=replace(target.note, run="second")))
        time.sleep(task.LOOK_EVERY_S)
        assert not pace.is_over()
        assert request_stop(admin, target)
        deadline = time.monotonic() + 30
        while not pace.is_over():
            assert time.monotonic() < deadline
            time.sleep(0.1)


def test_transaction_has_the_records_of_a_second_if_that_is_many(broker: KorvetServer) -> None:
    target = new_target(broker)
    plan = task.Plan(target=target, starts={}, ends={0: 100}, rate=None, at_once=1)
    with Broker(target.settings) as admin:
        pace = task.Pace(plan, admin)
        slow = pace.most()
        pace.sent(0, 0.0)
        assert pace.most() == slow
        pace.sent(slow, 0.5)
        assert pace.most() == 2 * slow
        pace.sent(2 * slow, 0.0)
        assert pace.most() == task.MOST_RECORDS
        pace.sent(1, 30.0)
        assert pace.most() == slow
        fast = task.Pace(replace(plan, rate=2.0 * slow), admin)
        assert fast.most() == slow
        fast.sent(slow, 0.1)
        assert fast.most() == 2 * slow
