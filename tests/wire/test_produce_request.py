"""Large Produce requests, read as kio reads them but without its copies."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from korvet.errors import MalformedRequest
from korvet.wire import produce_request
from korvet.wire.codec import decode_header, decode_request
from korvet.wire.produce_request import LARGE_BYTES, ProduceRequest
from korvet.wire.shape import MOST_OF_PRODUCE
from tests.oracle.messages import request_frame

VERSIONS = range(3, 14)
PARTITIONS = st.lists(
    st.fixed_dictionaries(
        {"index": st.integers(-1, 2**31 - 1), "records": st.one_of(st.none(), st.binary(max_size=300))}
    ),
    max_size=4,
)
TOPICS = st.lists(
    st.fixed_dictionaries(
        {"name": st.text(max_size=200), "topic_id": st.one_of(st.none(), st.uuids()), "partition_data": PARTITIONS}
    ),
    max_size=4,
)
REQUESTS = st.fixed_dictionaries(
    {
        "transactional_id": st.one_of(st.none(), st.text(max_size=20)),
        "acks": st.integers(-1, 1),
        "timeout": st.integers(0, 2**31 - 1),
        "topic_data": TOPICS,
    }
)


def framed(version: int, values: Any) -> memoryview:
    return memoryview(request_frame("produce", version, {"timeout": 1000, **values}, 7)[4:])


def body_of(version: int, values: Any) -> memoryview:
    frame = framed(version, values)
    return frame[decode_header(frame).body_at :]


def plain(request: Any, version: int) -> Any:
    """The fields that the handler of Produce reads."""
    topics = [
        (topic.topic_id if version >= 13 else topic.name, [(part.index, part.records) for part in topic.partition_data])
        for topic in request.topic_data
    ]
    return request.transactional_id, request.acks, request.timeout, topics


@pytest.mark.parametrize("version", VERSIONS)
@given(values=REQUESTS)
def test_request_is_read_as_by_kio(version: int, values: Any) -> None:
    frame = framed(version, values)
    by_kio = plain(decode_request(decode_header(frame), frame), version)
    assert plain(produce_request.decode(version, body_of(version, values)), version) == by_kio


@pytest.mark.parametrize("version", VERSIONS)
def test_large_requests_are_read_without_copies(version: int) -> None:
    part = {"index": 3, "records": bytes(LARGE_BYTES)}
    frame = framed(version, {"acks": -1, "topic_data": [{"name": "t", "partition_data": [part]}]})
    request: Any = decode_request(decode_header(frame), frame)
    assert isinstance(request, ProduceRequest)
    records = request.topic_data[0].partition_data[0].records
    assert isinstance(records, memoryview)
    assert records.obj is frame.obj


def test_large_produce_of_too_many_partitions_or_tagged_fields_is_refused() -> None:
    for count in (MOST_OF_PRODUCE - 1, MOST_OF_PRODUCE):
        parts = [{"index": 3, "records": b""}] * count
        body = body_of(12, {"acks": -1, "topic_data": [{"name": "t", "partition_data": parts}]})
        if count < MOST_OF_PRODUCE:
            assert len(produce_request.decode(12, body).topic_data[0].partition_data) == count
        else:
            with pytest.raises(MalformedRequest, match="elements in one request"):
                produce_request.decode(12, body)
    tagged = bytes(body_of(12, {"acks": -1, "topic_data": []}))[:-1] + b"\x41" + b"\x00\x00" * 65
    with pytest.raises(MalformedRequest, match="65 tagged fields"):
        produce_request.decode(12, memoryview(tagged))


def test_overlong_transactional_id_is_malformed() -> None:
    part = {"index": 3, "records": bytes(LARGE_BYTES)}
    values = {"acks": -1, "topic_data": [{"name": "t", "partition_data": [part]}], "transactional_id": "x" * 1024}
    assert produce_request.decode(9, body_of(9, values)).transactional_id == "x" * 1024
    with pytest.raises(MalformedRequest, match="transactional_id of 1025 bytes"):
        produce_request.decode(9, body_of(9, {**values, "transactional_id": "x" * 1025}))
    with pytest.raises(MalformedRequest, match="string of 32768 bytes"):
        produce_request.decode(9, body_of(9, {**values, "transactional_id": "x" * 32_768}))


@pytest.mark.parametrize("version", VERSIONS)
@given(values=REQUESTS, cut=st.integers(1, 300))
def test_truncated_body_is_malformed(version: int, values: Any, cut: int) -> None:
    body = body_of(version, values)
    with pytest.raises(MalformedRequest):
        produce_request.decode(version, body[: max(0, len(body) - cut)])


@pytest.mark.parametrize("version", VERSIONS)
@given(garbage=st.binary(max_size=200))
def test_garbage_is_malformed_or_a_request(version: int, garbage: bytes) -> None:
    try:
        produce_request.decode(version, memoryview(garbage))
    except MalformedRequest:
        return
