"""Compiled writers against kio's, for every API and version that kio has."""

from __future__ import annotations

import datetime
import io
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode
from kio.serial import entity_writer

from korvet.wire.schema import API_VERSIONS_KEY, FETCH_KEY, element_of, is_array, is_known, is_nullable, response_schema
from korvet.wire.writer import STEP, Rows, encode_response, framed, run, writer

HEARTBEAT, METADATA = 12, 3
VERSIONS: Final = [(key, version) for key in range(100) for version in range(20) if is_known(key, version)]
EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
MILLISECOND: Final = datetime.timedelta(milliseconds=1)


def _integers(bits: int) -> st.SearchStrategy[int]:
    return st.integers(-(1 << (bits - 1)), (1 << (bits - 1)) - 1)


PRIMITIVES: Final[dict[str, st.SearchStrategy[Any]]] = {
    "bool": st.booleans(),
    "int8": _integers(8),
    "int16": _integers(16),
    "uint16": st.integers(0, 2**16 - 1),
    "error_code": st.sampled_from(list(ErrorCode)),
    "int32": _integers(32),
    "uint32": st.integers(0, 2**32 - 1),
    "int64": _integers(64),
    "float64": st.floats(allow_nan=False),
    "timedelta_i32": st.integers(0, 2**31 - 1).map(lambda ms: ms * MILLISECOND),
    "timedelta_i64": st.integers(0, 2**45).map(lambda ms: ms * MILLISECOND),
    "datetime_i64": st.integers(0, 2**45).map(lambda ms: EPOCH + ms * MILLISECOND),
    "uuid": st.uuids(),
    "string": st.text(max_size=3) | st.just("é" * 100),
    "bytes": st.binary(max_size=3) | st.just(bytes(130)),
    "records": st.binary(max_size=3) | st.just(bytes(20_000)),
}


@cache
def entities(schema: Any) -> st.SearchStrategy[Any]:
    """kio's entities of a schema."""
    values = {}
    for field in fields(schema):
        element = element_of(field.type)
        one = PRIMITIVES[field.metadata["kafka_type"]] if element is None else entities(element)
        value = st.lists(one, max_size=2).map(tuple) if is_array(field.type) else one
        values[field.name] = st.none() | value if is_nullable(field.type) else value
    return st.builds(schema, **values)


def given_by_a_handler(value: Any, kafka_type: str = "") -> Any:
    """A value of kio's as a handler gives it."""
    if is_dataclass(value):
        return {
            field.name: given_by_a_handler(getattr(value, field.name), str(field.metadata.get("kafka_type")))
            for field in fields(value)
        }
    if isinstance(value, tuple):
        return [given_by_a_handler(one) for one in value]
    if isinstance(value, datetime.timedelta):
        return value // MILLISECOND
    if isinstance(value, datetime.datetime):
        return (value - EPOCH) // MILLISECOND
    return [value[:1], memoryview(value)[1:]] if kafka_type == "records" and value is not None else value


def by_kio(entity: Any) -> bytes:
    buffer = io.BytesIO()
    entity_writer(type(entity))(buffer, entity)
    return buffer.getvalue()


@pytest.mark.parametrize("api_key", sorted({key for key, _ in VERSIONS}))
def test_every_version_is_written_as_by_kio(api_key: int) -> None:
    for version in (version for key, version in VERSIONS if key == api_key):
        schema = response_schema(api_key, version)

        @settings(max_examples=8, suppress_health_check=list(HealthCheck), deadline=None, database=None)
        @given(entities(schema))
        def compare(entity: Any) -> None:
            write = writer(api_key, entity.__version__)
            assert b"".join(run(write(given_by_a_handler(entity), []))) == by_kio(entity)

        compare()


def test_one_answer_serves_all_versions() -> None:
    answer = {"throttle_time": 5, "error_code": ErrorCode.illegal_generation, "no_such_field": 1}
    assert _sent(HEARTBEAT, 0, answer) == b"\x00\x00\x00\x06" + b"\x00\x00\x00\x4d" + b"\x00\x16"
    assert _sent(HEARTBEAT, 1, answer) == b"\x00\x00\x00\x0a" + b"\x00\x00\x00\x4d" + b"\x00\x00\x00\x05\x00\x16"
    assert (
        _sent(HEARTBEAT, 4, answer) == b"\x00\x00\x00\x0c" + b"\x00\x00\x00\x4d\x00" + b"\x00\x00\x00\x05\x00\x16\x00"
    )


def _sent(api_key: int, version: int, answer: dict[str, Any]) -> bytes:
    return b"".join(encode_response(api_key, version, 77, answer))


def test_missing_fields_get_kafkas_defaults_unless_they_have_none() -> None:
    partition = {"partition_index": 1, "leader_id": 2, "replica_nodes": [2]}
    answer = {"brokers": (), "controller_id": 1, "topics": [{"error_code": 3, "name": "t", "partitions": [partition]}]}
    schema = response_schema(METADATA, 12)
    partitions = element_of(next(field.type for field in fields(schema) if field.name == "topics"))
    topic = element_of(next(field.type for field in fields(partitions) if field.name == "partitions"))
    expected = schema(
        throttle_time=0 * MILLISECOND,
        brokers=(),
        controller_id=1,
        topics=(
            partitions(
                error_code=ErrorCode.unknown_topic_or_partition,
                name="t",
                topic_id=None,
                is_internal=False,
                partitions=(
                    topic(
                        error_code=ErrorCode.none,
                        partition_index=1,
                        leader_id=2,
                        replica_nodes=(2,),
                        isr_nodes=(),
                        offline_replicas=(),
                    ),
                ),
            ),
        ),
    )
    assert b"".join(run(writer(METADATA, 12)(answer, []))) == by_kio(expected)
    with pytest.raises(KeyError, match="node_id"):
        run(writer(METADATA, 12)({**answer, "brokers": [{"host": "h", "port": 1}]}, []))


def test_all_error_codes_within_are_noted() -> None:
    topics = [{"error_code": 3, "name": "t", "partitions": ()}, {"error_code": 0, "name": "u", "partitions": ()}]
    codes: list[int] = []
    run(writer(METADATA, 13)({"brokers": (), "controller_id": 1, "topics": topics, "error_code": 42}, codes))
    assert codes == [3, 42]


def test_answer_to_api_versions_always_has_the_old_header() -> None:
    frame = _sent(API_VERSIONS_KEY, 4, {"error_code": ErrorCode.none, "api_keys": ()})
    assert frame[4:11] == b"\x00\x00\x00\x4d" + b"\x00\x00" + b"\x01"


def test_frame_has_the_size_of_all_its_parts() -> None:
    parts = framed(FETCH_KEY, 12, -1, [b"ab", memoryview(b"c")])
    assert b"".join(parts) == b"\x00\x00\x00\x08" + b"\xff\xff\xff\xff\x00" + b"abc"


def test_batches_leave_as_they_lie_in_memory() -> None:
    batch = memoryview(bytes(1 << 20))
    read = {"partition_index": 0, "high_watermark": 5, "records": [batch]}
    parts = run(writer(FETCH_KEY, 12)({"responses": [{"topic": "t", "partitions": [read, read]}]}, []))
    assert [part for part in parts if len(part) > 1000] == [batch, batch]


def test_long_answer_pauses_and_takes_its_elements_one_by_one() -> None:
    made: list[int] = []

    def partitions() -> Any:
        for index in range(3 * STEP):
            made.append(index)
            yield {"partition_index": index, "leader_id": 1, "replica_nodes": (1,), "isr_nodes": (1,)}

    topic = {"name": "t", "partitions": Rows(3 * STEP, partitions)}
    steps = writer(METADATA, 12)({"brokers": (), "controller_id": 1, "topics": [topic]}, [])
    next(steps)
    assert len(made) <= STEP
    parts = run(steps)
    # One part for each pause, and the end.
    assert (len(made), len(parts)) == (3 * STEP, 3 + 1)


def test_string_that_no_client_could_read_is_an_error() -> None:
    with pytest.raises(OverflowError):
        _sent(16, 0, {"groups": [{"group_id": "g" * 32_768, "protocol_type": ""}]})
    _sent(16, 3, {"groups": [{"group_id": "g" * 32_768, "protocol_type": ""}]})
