"""The hand-packed answers to members of groups equal kio's, byte for byte."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from korvet.wire import group_responses
from korvet.wire.codec import encode_response, frame_response

HEARTBEAT, OFFSET_COMMIT, CONSUMER_HEARTBEAT, JOIN_GROUP, SYNC_GROUP = 12, 8, 68, 11, 14
CODES = [-1, 0, 3, 12, 15, 22, 24, 25, 27, 69, 82]
PARTITIONS = st.lists(st.tuples(st.integers(0, 2**31 - 1), st.sampled_from(CODES)), max_size=4)
TOPICS = st.lists(st.tuples(st.text(max_size=300), PARTITIONS), max_size=4)
Topics = list[tuple[str, list[tuple[int, int]]]]


@pytest.mark.parametrize("version", range(5))
@pytest.mark.parametrize("code", CODES)
def test_heartbeat_equals_kios(version: int, code: int) -> None:
    by_hand = frame_response(HEARTBEAT, version, 7, [group_responses.heartbeat(version, code)])
    assert b"".join(by_hand) == encode_response(HEARTBEAT, version, 7, {"error_code": code})


@pytest.mark.parametrize("version", range(2))
@given(member_id=st.text(max_size=300), epoch=st.integers(-2, 2**31 - 1), interval_ms=st.integers(0, 2**31 - 1))
def test_consumer_heartbeat_equals_kios(version: int, member_id: str, epoch: int, interval_ms: int) -> None:
    body = group_responses.consumer_heartbeat(member_id, epoch, interval_ms)
    answer = {"error_code": 0, "member_id": member_id, "member_epoch": epoch, "heartbeat_interval": interval_ms}
    by_kio = encode_response(CONSUMER_HEARTBEAT, version, 7, {**answer, "assignment": None})
    assert b"".join(frame_response(CONSUMER_HEARTBEAT, version, 7, [body])) == by_kio


TEXTS = st.text(max_size=300)
NULLABLE = st.none() | TEXTS
DATA = st.binary(max_size=300)
MEMBERS = st.lists(st.tuples(TEXTS, NULLABLE, DATA), max_size=4)


@pytest.mark.parametrize("version", range(10))
@given(
    code=st.sampled_from(CODES), generation=st.integers(-1, 2**31 - 1), protocol_type=NULLABLE, protocol=NULLABLE,
    leader=TEXTS, skip_assignment=st.booleans(), member_id=TEXTS, members=MEMBERS,
)  # fmt: skip
def test_join_equals_kios(version: int, protocol: str | None, members: list[Any], **fields: Any) -> None:
    by_hand = group_responses.join_group(version, protocol=protocol, members=members, **fields)
    answer = {
        "error_code": fields["code"], "generation_id": fields["generation"], "leader": fields["leader"],
        "protocol_type": fields["protocol_type"], "protocol_name": protocol or (None if version >= 7 else ""),
        "skip_assignment": fields["skip_assignment"], "member_id": fields["member_id"],
        "members": [{"member_id": id, "group_instance_id": own, "metadata": data} for id, own, data in members],
    }  # fmt: skip
    assert b"".join(frame_response(JOIN_GROUP, version, 7, [by_hand])) == encode_response(
        JOIN_GROUP, version, 7, answer
    )


@pytest.mark.parametrize("version", range(6))
@given(code=st.sampled_from(CODES), protocol_type=NULLABLE, protocol=NULLABLE, assignment=DATA)
def test_sync_equals_kios(version: int, code: int, protocol: str | None, **fields: Any) -> None:
    by_hand = group_responses.sync_group(version, code=code, protocol=protocol, **fields)
    answer = {"error_code": code, "protocol_name": protocol, **fields}
    assert b"".join(frame_response(SYNC_GROUP, version, 7, [by_hand])) == encode_response(
        SYNC_GROUP, version, 7, answer
    )


def commit_by_kio(version: int, topics: Topics) -> bytes:
    answer = [
        {"name": name, "partitions": [{"partition_index": index, "error_code": code} for index, code in partitions]}
        for name, partitions in topics
    ]
    return encode_response(OFFSET_COMMIT, version, 7, {"topics": answer})


def commit_by_hand(version: int, topics: Topics) -> bytes:
    return b"".join(frame_response(OFFSET_COMMIT, version, 7, [group_responses.offset_commit(version, topics)]))


@pytest.mark.parametrize("version", range(2, 10))
@given(topics=TOPICS)
def test_commit_equals_kios(version: int, topics: Topics) -> None:
    assert commit_by_hand(version, topics) == commit_by_kio(version, topics)


@pytest.mark.parametrize("version", range(2, 10))
def test_commit_of_more_than_127_topics_and_partitions(version: int) -> None:
    partitions = [(index, index % 2 * 3) for index in range(300)]
    topics = [(f"t{number}", partitions if number == 0 else []) for number in range(200)]
    assert commit_by_hand(version, topics) == commit_by_kio(version, topics)
