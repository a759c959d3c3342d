"""The hand-packed Produce answer equals kio's, byte for byte."""

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from korvet.wire import produce_response
from korvet.wire.codec import encode_response, frame_response
from korvet.wire.produce_response import PartitionAnswer

VERSIONS = range(3, 14)
INT64 = st.integers(-1, 2**63 - 1)
ANSWERS = st.builds(
    PartitionAnswer,
    partition=st.integers(0, 2**31 - 1),
    code=st.sampled_from([-1, 0, 2, 3, 10, 45, 56, 100]),
    base_offset=INT64,
    log_append_time=st.one_of(st.just(-1), st.integers(0, 4102444800000)),
    log_start=INT64,
    message=st.one_of(st.none(), st.text(max_size=200)),
    record_errors=st.just(()),
) | st.builds(
    PartitionAnswer,
    partition=st.just(0),
    code=st.just(87),
    base_offset=st.just(-1),
    log_append_time=st.just(-1),
    log_start=INT64,
    message=st.text(max_size=200),
    record_errors=st.lists(st.tuples(st.integers(0, 2**31 - 1), st.text(max_size=200)), max_size=3).map(tuple),
)
NAMES = st.text("abcxyz.-_09", min_size=1, max_size=249)
TOPICS = st.lists(st.tuples(NAMES, st.uuids(), st.lists(ANSWERS, max_size=4)), max_size=4)
Topics = list[tuple[str, UUID, list[PartitionAnswer]]]


def by_kio(version: int, topics: Topics) -> bytes:
    responses = [
        {
            "name": name,
            "topic_id": topic_id,
            "partition_responses": [
                {
                    "index": answer.partition,
                    "error_code": answer.code,
                    "base_offset": answer.base_offset,
                    "log_append_time": answer.log_append_time,
                    "log_start_offset": answer.log_start,
                    "error_message": answer.message,
                    "record_errors": [
                        {"batch_index": index, "batch_index_error_message": why} for index, why in answer.record_errors
                    ],
                }
                for answer in answers
            ],
        }
        for name, topic_id, answers in topics
    ]
    return encode_response(0, version, 7, {"responses": responses, "throttle_time": 0})


def by_hand(version: int, topics: Topics) -> bytes:
    named = [(topic_id if version >= 13 else name, answers) for name, topic_id, answers in topics]
    return b"".join(frame_response(0, version, 7, [produce_response.pack(version, named)]))


@pytest.mark.parametrize("version", VERSIONS)
@given(topics=TOPICS)
def test_answer_equals_kios(version: int, topics: Topics) -> None:
    assert by_hand(version, topics) == by_kio(version, topics)


@pytest.mark.parametrize("version", VERSIONS)
def test_answer_of_more_than_127_topics_and_partitions(version: int) -> None:
    answers = [PartitionAnswer(index, 0, index) for index in range(300)]
    topics = [(f"t{number}", UUID(int=number + 1), answers if number == 0 else []) for number in range(200)]
    assert by_hand(version, topics) == by_kio(version, topics)
