"""A replay's task goes on after the place that is committed, and its successor fences it."""

from __future__ import annotations

import json
import uuid
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import pyarrow as pa
import pytest

from korvet.pipeline.broker import Broker, Position
from korvet.pipeline.errors import BrokerUnreachable, PipelineError
from korvet.pipeline.replay import task
from korvet.pipeline.replay.config import Note
from korvet.pipeline.replay.run import new_run
from korvet.pipeline.replay.task import Plan, Writer, headers_of
from korvet.pipeline.sink.once import transactional
from tests.pipeline.replaying import BEGIN_MS, read_topic
from tests.support.broker import KorvetServer

NO_SETTINGS: Mapping[str, str] = MappingProxyType({})


def new_plan(broker: KorvetServer, topic_settings: Mapping[str, str] = NO_SETTINGS) -> Plan:
    """A replay into a new topic of two partitions."""
    topic = f"task-{uuid.uuid4().hex[:8]}"
    address = {"bootstrap.servers": broker.bootstrap}
    with Broker(address) as admin:
        admin.create_topic(topic, 2, {"retention.ms": "-1", **topic_settings})
        note = Note(job="job", topic_id=admin.topics([topic])[topic].id, run="first", records=0)
    return Plan(settings={**address, "transaction.timeout.ms": "60000"}, name=topic, topic=topic, note=note)


def rows(*offsets: int, size_bytes: int = 0) -> pa.RecordBatch:
    """Rows of partition 0, as a task gets them, each with its offset as value."""
    values = [str(offset).encode().ljust(size_bytes) for offset in offsets]
    return pa.RecordBatch.from_pydict(
        {
            "partition": pa.array([0] * len(offsets), pa.int32()),
            "offset": pa.array(offsets, pa.int64()),
            "key": pa.nulls(len(offsets), pa.binary()),
            "value": pa.array(values, pa.binary()),
            "headers": pa.nulls(len(offsets), pa.string()),
            "ms": pa.array([BEGIN_MS] * len(offsets), pa.int64()),
        }
    )


def run(plan: Plan, *batches: pa.RecordBatch) -> list[dict[str, Any]]:
    return [outcome for some in task.run(plan, batches) for outcome in some.to_pylist()]


def values(broker: KorvetServer, plan: Plan) -> list[int]:
    return [int(value) for _, value, _, _ in read_topic(broker.bootstrap, plan.topic).get(0, []) if value is not None]


def test_next_task_goes_on_after_the_last_transaction(broker: KorvetServer) -> None:
    plan = new_plan(broker)
    assert run(plan) == run(plan, rows()) == run(plan, rows(), rows(5, 7), rows(8)) == []
    assert run(plan, rows(5, 7), rows(8, 9), rows(12)) == []
    assert run(plan, rows(9, 12)) == []
    assert values(broker, plan) == [5, 7, 8, 9, 12]
    with Broker(plan.settings) as admin:
        ((offset, note),) = plan.places(admin).values()
        assert (offset, note.records) == (13, 5)
        # Records in a topic that was deleted do not count.
        assert replace(plan, note=replace(plan.note, topic_id="another")).places(admin) == {}
        with pytest.raises(PipelineError, match="was begun with another table, range or topic"):
            replace(plan, note=replace(plan.note, job="another")).places(admin)
        admin.commit(plan.group, {(plan.topic, 0): Position(offset=3, leader_epoch=None)})
    (outcome,) = run(plan, rows(20))
    assert "is not a replay's" in outcome["failure"] and not outcome["passes"]


def test_transaction_ends_after_the_most_bytes(broker: KorvetServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task, "MOST_BYTES", 1000)
    plan = new_plan(broker)
    assert run(plan, *(rows(number, size_bytes=400) for number in range(5))) == []
    assert values(broker, plan) == [*range(5)]
    with Broker(plan.settings) as admin:
        # A marker ends each transaction, and takes an offset.
        assert admin.latest([(plan.topic, 0)], committed_only=True)[plan.topic, 0].offset == 7


def test_commit_whose_answer_was_lost_is_not_repeated(broker: KorvetServer, monkeypatch: pytest.MonkeyPatch) -> None:
    plan, commit = new_plan(broker), Writer.commit

    def untold(writer: Writer) -> None:
        monkeypatch.undo()
        commit(writer)
        raise BrokerUnreachable("no answer")

    monkeypatch.setattr(Writer, "commit", untold)
    assert run(plan, rows(0, 1)) == [{"failure": "no answer", "passes": True}]
    assert run(plan, rows(0, 1), rows(2)) == []
    assert values(broker, plan) == [0, 1, 2]


def test_task_with_a_successor_is_fenced_and_may_be_tried_again(
    broker: KorvetServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, commit = new_plan(broker), Writer.commit

    def late(writer: Writer) -> None:
        monkeypatch.undo()
        with transactional(plan.settings, f"{plan.group}-0") as successor:
            successor.producer.init_transactions(30)
        commit(writer)

    monkeypatch.setattr(Writer, "commit", late)
    (outcome,) = run(plan, rows(0, 1))
    assert outcome["passes"]
    assert run(plan, rows(0, 1)) == []
    assert values(broker, plan) == [0, 1]


def test_task_leaves_a_partition_alone_that_a_later_run_has(broker: KorvetServer) -> None:
    plan = new_plan(broker)
    later = replace(plan, note=replace(plan.note, run="second"))
    assert run(plan, rows(0)) == run(later, rows(0, 1)) == []
    (outcome,) = run(plan, rows(2))
    assert "was started a second time, which goes on; this one ends" in outcome["failure"] and not outcome["passes"]
    assert run(later, rows(2)) == []
    assert values(broker, plan) == [0, 1, 2]


def test_record_that_the_topic_refuses_leaves_no_open_transaction(broker: KorvetServer) -> None:
    plan = new_plan(broker, {"message.timestamp.before.max.ms": "1000"})
    (outcome,) = run(plan, rows(0))
    assert "timestamp" in outcome["failure"].lower() and not outcome["passes"]
    with Broker(plan.settings) as admin:
        key = (plan.topic, 0)
        ends = [admin.latest([key], committed_only=each)[key].offset for each in (True, False)]
    assert ends[0] == ends[1]
    assert values(broker, plan) == []


def test_run_is_later_than_its_predecessors_though_the_clock_went_back() -> None:
    year_2100 = f"{4_102_444_800 * 10**9:016x}{uuid.uuid4().hex}"
    first, second = new_run([]), new_run([year_2100])
    assert first < year_2100 < second < new_run([second, first])


def test_note_of_an_earlier_korvet_is_read() -> None:
    note = Note(job="j", topic_id="t", records=7, run="r")
    assert Note.of(note.to_json()) == note
    assert Note.of(note.to_json().replace('"run":', '"version":3,"run":')) == note
    assert [Note.of(text) for text in ("", "7", "{}", '{"korvet.replay": {"job": "j"}}')] == [None] * 4


def test_headers_keep_their_order_names_and_null_values() -> None:
    text = json.dumps([{"key": "b", "value": b64encode(b"\xff").decode()}, {"key": "a"}, {"key": "b", "value": ""}])
    assert headers_of(text) == [("b", b"\xff"), ("a", None), ("b", b"")]
    assert headers_of("[]") is None


@pytest.mark.parametrize("text", ['[{"key":"a"},{"value":"YQ=="}]', "[null]"])
def test_header_without_a_key_is_reported(text: str) -> None:
    with pytest.raises(PipelineError, match="a header without a key in the table"):
        headers_of(text)
