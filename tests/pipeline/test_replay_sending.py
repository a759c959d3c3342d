"""A partition's producer: it goes on where the last transaction ended, whoever committed it, and is fenced."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import pytest
from confluent_kafka import Producer, TopicPartition

from korvet.pipeline.broker import Broker, Position
from korvet.pipeline.errors import PipelineError
from korvet.pipeline.replay import task
from korvet.pipeline.replay.positions import GROUP_PREFIX, Note, Place, Positions
from korvet.pipeline.replay.run import _new_run
from korvet.pipeline.replay.sending import Chunk, Fenced, Sender, TakenOver, Target
from korvet.pipeline.replay.stopping import tell_to_stop
from tests.pipeline.replaying import BEGIN_MS, read_topic
from tests.support.broker import KorvetServer, running_broker

NO_SETTINGS: Mapping[str, str] = MappingProxyType({})


def target(broker: KorvetServer, topic_settings: Mapping[str, str] = NO_SETTINGS, timeout_ms: int = 60_000) -> Target:
    """A replay of its own, into a topic of its own of two partitions."""
    topic = f"sending-{uuid.uuid4().hex[:8]}"
    address = {"bootstrap.servers": broker.bootstrap}
    with Broker(address) as admin:
        admin.create_topic(topic, 2, {"retention.ms": "-1", **topic_settings})
        note = Note(job="job", version=0, topic_id=admin.topics([topic])[topic].id, run="first", records=0)
    settings = {**address, "transaction.timeout.ms": str(timeout_ms)}
    return Target(settings=settings, producer={}, name=topic, topic=topic, note=note)


def chunk(first: int, count: int) -> Chunk:
    """Records of these offsets; the value of each is its offset."""
    offsets = list(range(first, first + count))
    return Chunk(offsets=offsets, rows=[(None, str(offset).encode(), None, BEGIN_MS) for offset in offsets])


def offsets(broker: KorvetServer, place: Target) -> list[int]:
    """Of the records in partition 0."""
    found = read_topic(broker.bootstrap, place.topic, 2).get(0, [])
    return [int(value) for _, value, _, _ in found if value is not None]


def test_who_comes_next_goes_on_behind_the_last_transaction(broker: KorvetServer) -> None:
    place = target(broker)
    with Sender(place, 0, 5) as first:
        first.begin()
        assert first.position == 5
        first.send(chunk(5, 10))
    with Sender(place, 0, 5) as second, Positions(place.settings, place.name, place.topic) as positions:
        second.begin()
        assert second.position == 15
        second.send(chunk(5, 20))
        assert positions.read([0, 1], place.note.topic_id)[0].note.records == 20
    assert offsets(broker, place) == list(range(5, 25))


@pytest.mark.parametrize("count", [10, task.MOST_RECORDS])
def test_a_producer_that_was_followed_is_fenced_and_writes_nothing(broker: KorvetServer, count: int) -> None:
    place = target(broker)
    with Sender(place, 0, 0) as old, Sender(place, 0, 0) as new:
        old.begin()
        old.send(chunk(0, 10))
        new.begin()
        with pytest.raises(Fenced):
            old.send(chunk(10, count))
        new.send(chunk(10, 5))
        old.follow()
        assert old.position == 15
    assert offsets(broker, place) == list(range(15))


def test_a_position_that_is_on_its_way_is_waited_for(broker: KorvetServer) -> None:
    place = target(broker)
    pending = Producer({**place.settings, "transactional.id": place.name})
    pending.init_transactions()
    pending.begin_transaction()
    with Sender(place, 0, 0) as sender, Positions(place.settings, place.name, place.topic) as positions:
        note = TopicPartition(place.topic, 0, 7, place.note.to_json())
        pending.send_offsets_to_transaction([note], positions.group)
        beginning = threading.Thread(target=sender.begin)
        beginning.start()
        beginning.join(1)
        with Broker(place.settings) as admin:
            later = threading.Timer(1, pending.commit_transaction)
            later.start()
            group = GROUP_PREFIX + place.name
            assert admin.committed(group, stable=True)[place.topic, 0].offset == 7
            later.join()
        beginning.join(60)
        assert sender.position == 7


class Slow(Sender):
    """Its first transaction is open for longer than it may be."""

    is_first = True

    def commit(self, producer: Producer, position: list[TopicPartition]) -> None:
        if self.is_first:
            self.is_first = False
            producer.flush()
            time.sleep(3)
        super().commit(producer, position)


def test_a_transaction_that_took_too_long_is_written_again(broker: KorvetServer) -> None:
    place = target(broker, timeout_ms=1500)
    with Slow(place, 0, 0) as sender:
        sender.begin()
        sender.send(chunk(0, 10))
        sender.send(chunk(10, 10))
    assert offsets(broker, place) == list(range(20))


class Untold(Sender):
    """It does not learn that its first transaction was committed."""

    is_first = True

    def commit(self, producer: Producer, position: list[TopicPartition]) -> None:
        super().commit(producer, position)
        if self.is_first:
            self.is_first = False
            # The transaction is over, so this fails as a commit does whose answer was lost.
            producer.commit_transaction()


def test_a_commit_whose_answer_was_lost_is_not_repeated(broker: KorvetServer) -> None:
    place = target(broker)
    with Untold(place, 0, 0) as sender:
        sender.begin()
        sender.send(chunk(0, 10))
        sender.send(chunk(10, 10))
    assert offsets(broker, place) == list(range(20))


def test_what_the_topic_refuses_is_told_and_leaves_nothing_open(broker: KorvetServer) -> None:
    place = target(broker, {"message.timestamp.before.max.ms": "1000"})
    with Sender(place, 0, 0) as sender:
        sender.begin()
        old = Chunk(offsets=[0], rows=[(b"k", b"v", None, 1000)])
        with pytest.raises(PipelineError, match=rf"{place.topic}-0 behind 0 .*message\.timestamp\.before\.max\.ms"):
            sender.send(old)
    with Broker(place.settings) as admin:
        key = (place.topic, 0)
        ends = [admin.latest([key], committed_only=each)[key].offset for each in (True, False)]
    assert ends[0] == ends[1]
    assert offsets(broker, place) == []


def test_a_position_before_the_one_that_was_read_is_told_of(broker: KorvetServer) -> None:
    place = target(broker)
    with Sender(place, 0, 0) as first, Sender(place, 0, 10) as second:
        first.begin()
        first.send(chunk(0, 3))
        with pytest.raises(PipelineError, match="was replayed up to 10, and its group says 3"):
            second.begin()


def test_a_group_that_is_no_replays_is_told_of(broker: KorvetServer) -> None:
    place = target(broker)
    with Sender(place, 0, 100) as sender:
        sender.begin()
        sender.send(chunk(100, 1))
        with Broker(place.settings) as admin:
            admin.commit(GROUP_PREFIX + place.name, {(place.topic, 0): Position(offset=3, leader_epoch=None)})
        with pytest.raises(PipelineError, match="is not a replay's"):
            sender.begin()


def test_positions_of_a_former_topic_count_no_more(broker: KorvetServer) -> None:
    place = target(broker)
    with Sender(place, 0, 0) as sender, Positions(place.settings, place.name, place.topic) as positions:
        sender.begin()
        sender.send(chunk(0, 3))
        assert positions.read([0], place.note.topic_id)[0].offset == 3
        assert positions.read([0], "another") == {}


def test_an_attempt_that_is_followed_waits_for_its_successor(broker: KorvetServer) -> None:
    place = target(broker)
    plan = task.Plan(target=place, firsts={0: 0}, ends={0: 20}, rate=None, at_once=1)
    with Sender(place, 0, 0) as old, Sender(place, 0, 0) as new:
        old.begin()
        new.begin()
        new.send(chunk(0, 10))
        waiting = threading.Thread(target=task.follow, args=(old, plan, 0))
        waiting.start()
        assert waiting.is_alive()
        new.send(chunk(10, 10))
        waiting.join(60)
        assert not waiting.is_alive()


def test_a_run_that_was_begun_a_second_time_ends_the_first(broker: KorvetServer) -> None:
    place = target(broker)
    plan = task.Plan(target=place, firsts={0: 0}, ends={0: 20}, rate=None, at_once=1)
    second = replace(place, note=replace(place.note, run="second"))
    with Sender(place, 0, 0) as old, Sender(second, 0, 0) as new:
        old.begin()
        new.begin()
        new.send(chunk(0, 10))
        with pytest.raises(TakenOver, match="was started a second time"):
            task.follow(old, plan, 0)
        # Nor does it fence the second where it comes to a partition that it had not begun.
        with Sender(place, 0, 0) as late, pytest.raises(TakenOver, match=r"goes on with .*-0 behind 10"):
            late.begin()
        new.send(chunk(10, 10))
    assert offsets(broker, place) == list(range(20))


def test_a_run_goes_on_behind_what_an_earlier_one_still_wrote(broker: KorvetServer) -> None:
    place = target(broker)
    second = replace(place, note=replace(place.note, run="second"))
    with Sender(place, 0, 0) as old, Sender(second, 0, 0) as new:
        old.begin()
        old.send(chunk(0, 10))
        new.begin()
        new.send(chunk(0, 20))
    assert offsets(broker, place) == list(range(20))


def test_a_run_is_later_than_those_before_it_though_the_clock_was_set_back() -> None:
    year_2100 = f"{4_102_444_800 * 10**9:016x}{uuid.uuid4().hex}"
    note = Note(job="job", version=0, topic_id="id", run=year_2100, records=0)
    first, second = _new_run({}), _new_run({0: Place(offset=5, note=note)})
    assert first < year_2100 < second < _new_run({1: Place(offset=5, note=replace(note, run=second))})


def test_two_replays_of_one_name_are_told_of(broker: KorvetServer) -> None:
    place = target(broker)
    other = replace(place, note=replace(place.note, job="another"))
    with Sender(place, 0, 0) as first, Sender(other, 0, 10) as second:
        first.begin()
        first.send(chunk(0, 5))
        with pytest.raises(PipelineError, match="is done with another table or range, too; choose another name"):
            second.begin()


def test_positions_are_waited_for_while_storage_is_away(tmp_path: Path) -> None:
    with running_broker(directory=tmp_path) as broker:
        place = target(broker)
        with Sender(place, 0, 0) as sender, Positions(place.settings, place.name, place.topic) as positions:
            sender.begin()
            sender.send(chunk(0, 1))
            broker.kill_embedded()
            assert positions.read([0], place.note.topic_id)[0].offset == 1


def test_the_rate_is_kept_and_shared_by_those_that_are_not_at_their_end(broker: KorvetServer) -> None:
    place = target(broker)
    plan = task.Plan(target=place, firsts={0: 0, 1: 0}, ends={0: 100, 1: 10}, rate=40.0, at_once=2)
    began = time.monotonic()
    with Broker(place.settings) as admin:
        pace = task.Pace(plan, admin)
        assert pace.most() == 20
        with Sender(place, 1, 0) as other:
            other.begin()
            other.send(chunk(0, 10))
        for _ in range(3):
            assert not pace.is_over()
            pace.sent(20)
        assert time.monotonic() - began >= 0.9
        assert pace.most() == 40
        # Another run of the replay is no matter.
        assert tell_to_stop(admin, replace(place, note=replace(place.note, run="second")))
        time.sleep(task.LOOK_EVERY_S)
        assert not pace.is_over()
        assert tell_to_stop(admin, place)
        deadline = time.monotonic() + 30
        while not pace.is_over():
            assert time.monotonic() < deadline
            time.sleep(0.1)
