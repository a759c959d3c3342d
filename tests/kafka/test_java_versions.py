"""The Java client in its oldest and newest version that Kafka 4.1 serves too; the other scenarios run on 4.1."""

from __future__ import annotations

from typing import Any

import pytest

from tests.kafka.builds import JAVA_VERSIONS
from tests.kafka.client import At
from tests.kafka.conftest import ClientNamed
from tests.kafka.options import ProduceOptions, failures
from tests.kafka.process import Administrator, ProcessClient
from tests.kafka.records import Record, contents
from tests.kafka.traits import CODECS

pytestmark = pytest.mark.all

TIMEOUT_MS = 60_000


@pytest.fixture(params=JAVA_VERSIONS)
def client(request: pytest.FixtureRequest, client_named: ClientNamed) -> ProcessClient:
    """Each version in turn, all of a version's scenarios in one process."""
    found = client_named(request.param)
    assert isinstance(found, ProcessClient)
    return found


def test_records_of_every_codec_come_back_as_they_went(client: ProcessClient, topic: str) -> None:
    sent = [
        Record(key=b"key", value=codec.encode(), headers=(("codec", codec.encode()), ("null", None)), partition=0,
               timestamp_ms=1_700_000_000_000 + number)
        for number, codec in enumerate(CODECS)
    ]  # fmt: skip
    for codec, record in zip(CODECS, sent, strict=True):
        assert failures(client.produce(topic, [record], ProduceOptions(compression=codec))) == []
    found = client.consume(topic, "earliest", len(CODECS))
    assert contents(found) == contents(sent)
    assert [record.timestamp_ms for record in found] == [record.timestamp_ms for record in sent]
    assert client.consume(topic, At(found[-1].timestamp_ms or 0), 1) == found[-1:]


def test_committed_records_alone_are_read(client: ProcessClient, topic: str, group: str) -> None:
    client.call("begin", transactional_id=f"id-{group}", timeout_ms=TIMEOUT_MS)
    for outcome in ("commit", "abort", "commit"):
        client.call("transact", topic=topic, values=[outcome], outcome=outcome, group=group, offset=3)
    client.call("end")
    found = client.call("read_committed", topic=topic, count=2, timeout_ms=TIMEOUT_MS)
    assert (found, client.committed(group, topic)) == (["commit", "commit"], {0: 3})


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_member_of_each_protocol_reads_and_commits(
    client: ProcessClient, bootstrap: str, topic: str, group: str, protocol: str
) -> None:
    values: list[Any] = [f"{protocol}-{number}" for number in range(20)]
    found = client.call(
        "visit", connect={"bootstrap": bootstrap}, topic=topic, group=group, values=values, group_protocol=protocol
    )
    assert found == values
    assert client.committed(group, topic) == {0: len(values)}


def test_topics_groups_and_offsets_are_administered(
    client: ProcessClient, administrator: Administrator, group: str
) -> None:
    topic = f"topic-of-{group}"
    client.create_topic(topic, 2, {"retention.ms": "60000"})
    assert topic in client.topics()
    client.set_offsets(group, topic, {0: 5, 1: 7})
    assert administrator.committed(group, topic) == {0: 5, 1: 7}
    client.call("delete_offsets", group=group, topic=topic, partitions=[1])
    assert client.committed(group, topic) == {0: 5}
    client.call("delete_group", group=group)
    assert administrator.committed(group, topic) == {}
    client.delete_topic(topic)
    assert topic not in client.topics()
