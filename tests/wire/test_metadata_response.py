"""The hand-packed Metadata answer equals kio's, byte for byte."""

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from korvet.wire.codec import encode_response, frame_response
from korvet.wire.metadata_response import BrokerAnswer, ClusterAnswer, PartitionAnswer, TopicAnswer, pack

VERSIONS = range(14)
INT32 = st.integers(0, 2**31 - 1)
CODES = st.sampled_from([0, 3, 5, 17, 100])
NAMES = st.text("abcxyz.-_09", min_size=1, max_size=249)
BROKERS = st.lists(st.builds(BrokerAnswer, INT32, st.text(max_size=200), INT32), max_size=3)
PARTITIONS = st.lists(st.builds(PartitionAnswer, CODES, INT32, INT32 | st.just(-1), INT32, INT32), max_size=130)
CLUSTERS = st.builds(ClusterAnswer, BROKERS, st.none() | NAMES, INT32, INT32, CODES)
IDS = st.uuids().filter(lambda id: id.int != 0)


@st.composite
def topics(draw: st.DrawFn) -> TopicAnswer:
    partitions = draw(PARTITIONS)
    return TopicAnswer(
        draw(CODES), draw(NAMES), draw(IDS), draw(st.booleans()), draw(INT32), partitions, len(partitions)
    )


def by_kio(version: int, cluster: ClusterAnswer, found: list[TopicAnswer]) -> bytes:
    answer = {
        "brokers": [broker._asdict() for broker in cluster.brokers],
        "cluster_id": cluster.cluster_id,
        "controller_id": cluster.controller_id,
        "topics": [
            {
                "error_code": topic.code,
                "name": topic.name,
                "topic_id": topic.topic_id,
                "is_internal": topic.is_internal,
                "partitions": [
                    {
                        "error_code": part.code,
                        "partition_index": part.partition,
                        "leader_id": part.leader,
                        "leader_epoch": part.epoch,
                        "replica_nodes": (part.node,),
                        "isr_nodes": (part.node,),
                    }
                    for part in topic.partitions
                ],
                "topic_authorized_operations": topic.operations,
            }
            for topic in found
        ],
        "cluster_authorized_operations": cluster.operations,
        "error_code": cluster.code,
    }
    return encode_response(3, version, 7, answer)


def by_hand(version: int, cluster: ClusterAnswer, found: list[TopicAnswer]) -> tuple[bytes, int]:
    """The frame, and the number of pauses."""
    steps, pauses = pack(version, cluster, iter(found), len(found)), 0
    while True:
        try:
            next(steps)
            pauses += 1
        except StopIteration as stop:
            return b"".join(frame_response(3, version, 7, [stop.value])), pauses


@pytest.mark.parametrize("version", VERSIONS)
@given(cluster=CLUSTERS, found=st.lists(topics(), max_size=4))
def test_answer_equals_kios(version: int, cluster: ClusterAnswer, found: list[TopicAnswer]) -> None:
    assert by_hand(version, cluster, found)[0] == by_kio(version, cluster, found)


@pytest.mark.parametrize("version", [12, 13])
def test_topic_of_an_unknown_id_has_no_name(version: int) -> None:
    cluster, topic = ClusterAnswer([], "c", 1, 0), TopicAnswer(100, None, UUID(int=5), False, 0, [], 0)
    assert by_hand(version, cluster, [topic])[0] == by_kio(version, cluster, [topic])


def test_long_answer_is_packed_in_steps() -> None:
    partitions = [PartitionAnswer(0, index, 1, 0, 1) for index in range(5000)]
    topic = TopicAnswer(0, "t", UUID(int=5), False, 0, partitions, len(partitions))
    frame, pauses = by_hand(13, ClusterAnswer([], "c", 1, 0), [topic, topic])
    assert frame == by_kio(13, ClusterAnswer([], "c", 1, 0), [topic, topic])
    assert pauses == 5
