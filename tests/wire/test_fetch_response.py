"""The hand-packed Fetch answer equals kio's, byte for byte."""

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from korvet.wire import fetch_response
from korvet.wire.codec import encode_response, frame_response
from korvet.wire.fetch_response import EpochEnd, PartitionRead

VERSIONS = range(4, 19)
INT64 = st.integers(-1, 2**63 - 1)
READS = st.builds(
    PartitionRead,
    partition=st.integers(0, 2**31 - 1),
    code=st.sampled_from([-1, 0, 1, 3, 74, 76, 100]),
    high_watermark=INT64,
    log_start=INT64,
    last_stable=INT64,
    records=st.lists(st.binary(max_size=300), max_size=4),
    diverging=st.one_of(st.none(), st.builds(EpochEnd, st.integers(0, 2**31 - 1), INT64)),
    aborted=st.one_of(st.none(), st.lists(st.tuples(INT64, INT64), max_size=300)),
)
NAMES = st.text("abcxyz.-_09", min_size=1, max_size=249)
TOPICS = st.lists(st.tuples(NAMES, st.uuids(), st.lists(READS, max_size=4)), max_size=4)
Topics = list[tuple[str, UUID, list[PartitionRead]]]


def by_kio(version: int, topics: Topics, code: int) -> bytes:
    responses = [
        {
            "topic": name,
            "topic_id": topic_id,
            "partitions": [
                {
                    "partition_index": read.partition,
                    "error_code": read.code,
                    "high_watermark": read.high_watermark,
                    "last_stable_offset": read.last_stable,
                    "log_start_offset": read.log_start,
                    **({"diverging_epoch": read.diverging._asdict()} if read.diverging else {}),
                    "aborted_transactions": _aborted(read),
                    "records": b"".join(read.records),
                }
                for read in reads
            ],
        }
        for name, topic_id, reads in topics
    ]
    return encode_response(1, version, 7, {"throttle_time": 0, "error_code": code, "responses": responses})


def _aborted(read: PartitionRead) -> list[dict[str, int]] | None:
    if read.aborted is None:
        return None
    return [{"producer_id": producer_id, "first_offset": first} for producer_id, first in read.aborted]


def by_hand(version: int, topics: Topics, code: int) -> bytes:
    named = [(topic_id if version >= 13 else name, reads) for name, topic_id, reads in topics]
    for _, _, reads in topics:
        for read in reads:
            read.size_bytes = sum(map(len, read.records))
    return b"".join(frame_response(1, version, 7, fetch_response.pack(version, named, code)))


@pytest.mark.parametrize("version", VERSIONS)
@given(topics=TOPICS, code=st.sampled_from([0, 70]))
def test_answer_equals_kios(version: int, topics: Topics, code: int) -> None:
    assert by_hand(version, topics, code) == by_kio(version, topics, code)


@pytest.mark.parametrize("version", VERSIONS)
def test_records_of_a_megabyte_and_many_partitions(version: int) -> None:
    reads = [PartitionRead(index, 0, 5, 1, records=[memoryview(bytes(1 << 20))]) for index in range(2)]
    many = [PartitionRead(index, 0, 5, 1) for index in range(300)]
    topics = [("a", UUID(int=1), reads), ("b", UUID(int=2), many), ("c", UUID(int=3), [])]
    assert by_hand(version, topics, 0) == by_kio(version, topics, 0)
