"""The comparer, on bytes alone: equal answers pass, changed fields are named, and the table allows only its rows."""

import io
import struct
from collections.abc import Mapping
from typing import Any

import pytest
from kio.index import load_response_schema
from kio.serial import entity_writer

from tests.oracle import batches, messages
from tests.oracle.batches import Batch
from tests.oracle.compare import mismatches, surprises
from tests.oracle.differences import Difference
from tests.oracle.messages import ScriptError
from tests.oracle.script import NOTHING, Played, Transcript
from tests.oracle.versions import API_KEYS, supported

VARIABLES: dict[str, Any] = {"t": "topic-1", "now": 1000}


def answer(api: str, version: int, values: Mapping[str, Any]) -> Any:
    """Encode an answer with kio and read it back as the harness does."""
    schema = load_response_schema(API_KEYS[api], version)
    header_schema: Any = schema.__header_schema__
    buffer = io.BytesIO()
    entity_writer(header_schema)(buffer, header_schema(correlation_id=5))
    entity: Any = messages.entity(schema, values, api)
    entity_writer(schema)(buffer, entity)
    return messages.parse_answer(api, version, buffer.getvalue(), 5)


def transcript(outcome: Any, api: str = "list_offsets", **variables: Any) -> Transcript:
    played = Played(api=api, label="step 1", outcome=outcome, errors=(), ignore=())
    return Transcript(variables={**VARIABLES, **variables}, played=[played])


def offsets(*rows: tuple[int, int], throttle_ms: int = 0) -> Any:
    partitions = [
        {"partition_index": index, "timestamp": -1, "offset": offset, "leader_epoch": 0, "error_code": 0}
        for index, offset in rows
    ]
    topics = [{"name": "topic-1", "partitions": partitions}]
    return answer("list_offsets", 7, {"throttle_time": throttle_ms, "topics": topics})


def fetched(*records: Batch) -> Any:
    data = b"".join(map(batches.encode, records))
    partition = {"partition_index": 0, "error_code": 0, "high_watermark": 3, "records": data}
    return answer("fetch", 12, {"responses": [{"topic": "topic-1", "partitions": [partition]}]})


def test_equal_answers_have_no_mismatch() -> None:
    assert mismatches("s", transcript(offsets((0, 3))), transcript(offsets((0, 3)))) == []


def test_altered_field_is_named_with_both_values() -> None:
    found = mismatches("s", transcript(offsets((0, 3), (1, 4))), transcript(offsets((0, 3), (1, 5))))
    assert found == ["step 1: topics[name='<t>'].partitions[partition_index=1].offset: Kafka 4, korvet 5"]


def test_missing_element_is_reported() -> None:
    (line,) = mismatches("s", transcript(offsets((0, 3), (1, 4))), transcript(offsets((1, 4))))
    assert line.startswith("step 1: topics[name='<t>'].partitions[partition_index=0]: Kafka {")
    assert line.endswith("korvet '(absent)'")


def test_order_of_a_list_is_ignored() -> None:
    assert mismatches("s", transcript(offsets((0, 3), (1, 4))), transcript(offsets((1, 4), (0, 3)))) == []


def test_throttle_times_are_ignored_and_clock_times_compared_by_presence() -> None:
    assert mismatches("s", transcript(offsets((0, 3))), transcript(offsets((0, 3), throttle_ms=9))) == []

    def stamped(time_ms: int) -> Transcript:
        row = {"index": 0, "error_code": 0, "base_offset": 0, "log_append_time": time_ms}
        answer = {"responses": [{"name": "topic-1", "partition_responses": [row]}]}
        return transcript(answer, "produce")

    assert mismatches("s", stamped(1000), stamped(2000)) == []
    (line,) = mismatches("s", stamped(1000), stamped(-1))
    assert "log_append_time" in line


def test_values_of_variables_are_compared_by_name() -> None:
    def beaten(member: str) -> Any:
        member_answer = {"member_id": member, "leader": member, "generation_id": 1, "protocol_name": "range"}
        return transcript(answer("join_group", 5, member_answer), "join_group", m="x-1" if member == "x-1" else "y-2")

    assert mismatches("s", beaten("x-1"), beaten("y-2")) == []
    assert len(mismatches("s", beaten("x-1"), beaten("z-3"))) == 2


def test_records_are_compared_batch_by_batch() -> None:
    kafka = transcript(fetched(Batch(count=2), Batch()), "fetch")
    assert mismatches("s", kafka, transcript(fetched(Batch(count=2), Batch()), "fetch")) == []
    (line,) = mismatches("s", kafka, transcript(fetched(Batch(count=2), Batch(value=b"other")), "fetch"))
    assert "records[1].body" in line or "records[1].length" in line
    found = mismatches("s", kafka, transcript(fetched(Batch(count=2), Batch(damage="crc")), "fetch"))
    assert [line.rsplit(": ", 1)[1] for line in found] == ["Kafka 'right', korvet 'wrong'"]


def test_missing_answer_is_a_mismatch() -> None:
    (line,) = mismatches("s", transcript(offsets((0, 3))), transcript(NOTHING))
    assert line.startswith("step 1: answer: Kafka {")


def test_row_of_the_table_allows_only_its_own_field() -> None:
    row = Difference(api="list_offsets", path="topics[].partitions[].offset", reason="a test", script="only this*")
    kafka, korvet = transcript(offsets((0, 3))), transcript(offsets((0, 4)))
    assert mismatches("only this one", kafka, korvet, (row,)) == []
    assert len(mismatches("another", kafka, korvet, (row,))) == 1
    other_field = Difference(api="list_offsets", path="topics[].partitions[].timestamp", reason="a test")
    assert len(mismatches("only this one", kafka, korvet, (other_field,))) == 1


def test_row_for_extra_elements_allows_no_wrong_elements() -> None:
    row = Difference(api="list_offsets", path="topics[].partitions[]", reason="a test", extra=True)
    kafka = transcript(offsets((0, 3)))
    assert mismatches("s", kafka, transcript(offsets((0, 3), (1, 4))), (row,)) == []
    assert len(mismatches("s", kafka, transcript(offsets((0, 9), (1, 4))), (row,))) == 1
    assert len(mismatches("s", kafka, transcript(offsets()), (row,))) == 1


def test_unexpected_error_of_kafka_is_a_fault_of_the_script() -> None:
    refused = answer("heartbeat", 4, {"error_code": 25})
    assert surprises(transcript(refused, "heartbeat")) == [
        "step 1: Kafka answered ['UNKNOWN_MEMBER_ID'], the script says []"
    ]


def test_bytes_after_an_answer_and_foreign_correlation_ids_are_refused() -> None:
    frame = struct.pack(">iih", 5, 0, 0)
    assert messages.parse_answer("heartbeat", 1, frame, 5)["error_code"] == "NONE"
    with pytest.raises(ValueError, match="1 bytes after the answer"):
        messages.parse_answer("heartbeat", 1, frame + b"\0", 5)
    with pytest.raises(ValueError, match="correlation id 5, sent 6"):
        messages.parse_answer("heartbeat", 1, frame, 6)


def test_field_that_no_version_has_is_refused() -> None:
    with pytest.raises(ScriptError, match="heartbeat has no field generation"):
        messages.request_frame("heartbeat", 4, {"generation": 1}, 1)


@pytest.mark.parametrize("api", API_KEYS)
def test_empty_request_can_be_built_at_every_version(api: str) -> None:
    for version in supported(api):
        frame = messages.request_frame(api, version, {}, 7)
        assert struct.unpack_from(">ihhi", frame) == (len(frame) - 4, API_KEYS[api], version, 7)
