"""Topics that clients create and delete, also under a running consumer."""

import uuid

import pytest

from tests.kafka.client import Client, ClientError
from tests.kafka.conftest import JoinGroup
from tests.kafka.options import MemberOptions
from tests.kafka.process import Administrator
from tests.kafka.records import contents, numbered
from tests.kafka.traits import MEMBERS, TRAITS, names_where
from tests.kafka.waiting import poll_until

UNKNOWN_TOPIC_OR_PARTITION = 3
TOPIC_ALREADY_EXISTS = 36

administering = pytest.mark.parametrize("client", names_where(lambda traits: traits.administers), indirect=True)


@administering
def test_topic_is_created_listed_and_used(client: Client, administrator: Administrator) -> None:
    topic = f"scenario-{uuid.uuid4().hex[:12]}"
    client.create_topic(topic, 3, {"retention.ms": "3600000"})
    poll_until(lambda: topic in client.topics(), "the topic in the list")
    poll_until(lambda: administrator.serves(topic, 3), "its partitions")
    client.produce(topic, numbered(2, partition=2))
    assert contents(client.consume(topic, "earliest", 2)) == contents(numbered(2))


@administering
def test_deleted_topic_is_gone_from_the_list(client: Client, topic: str) -> None:
    # No consumer reads the topic. A consumer, even one that closes, asks for its topic's metadata, and brokers create a
    # topic that is asked for (auto.create.topics.enable): a new topic of the name would exist at once.
    client.produce(topic, numbered(2))
    assert topic in client.topics()
    client.delete_topic(topic)
    poll_until(lambda: topic not in client.topics(), "the topic gone from the list")


@administering
def test_existing_topic_is_not_created_again(client: Client, topic: str) -> None:
    with pytest.raises(ClientError) as error:
        client.create_topic(topic, 1)
    assert error.value.code == TOPIC_ALREADY_EXISTS


@pytest.mark.parametrize("client", MEMBERS, indirect=True)
def test_consumer_outlives_its_topic_and_a_new_one_of_the_name_is_empty(
    client: Client, administrator: Administrator, topic: str, group: str, join: JoinGroup
) -> None:
    administrator.produce(topic, numbered(5, prefix="old"))
    member = join(client, group, topic, MemberOptions(reset="earliest"))
    member.await_records(5)
    _replace(administrator, topic)
    administrator.produce(topic, numbered(3, prefix="new"))
    read = client.consume(topic, "earliest", 3)
    assert contents(read) == contents(numbered(3, prefix="new"))
    assert [record.offset for record in read] == [0, 1, 2]
    assert member.alive or not TRAITS[client.name].survives_deletion
    member.leave()


@pytest.mark.parametrize("client", MEMBERS, indirect=True)
def test_group_reads_a_new_topic_of_the_name_from_the_beginning(
    client: Client, administrator: Administrator, topic: str, group: str, join: JoinGroup
) -> None:
    administrator.produce(topic, numbered(5, prefix="old"))
    administrator.set_offsets(group, topic, {0: 2})
    _replace(administrator, topic)
    poll_until(lambda: administrator.committed(group, topic) == {}, "the offset of the former topic gone")
    administrator.produce(topic, numbered(4, prefix="new"))
    member = join(client, group, topic, MemberOptions(reset="earliest"))
    assert contents(member.await_records(4)) == contents(numbered(4, prefix="new"))
    member.leave()


def _replace(administrator: Administrator, topic: str) -> None:
    """Delete the topic and wait for a new one of the name. A running consumer may be the first to create it."""
    former = administrator.topic_id(topic)
    administrator.delete_topic(topic)

    def replaced() -> bool:
        try:
            return administrator.topic_id(topic) != former
        except ClientError as error:
            assert error.code == UNKNOWN_TOPIC_OR_PARTITION
        try:
            administrator.create_topic(topic, 1)
        except ClientError as error:
            assert error.code == TOPIC_ALREADY_EXISTS
        return False

    poll_until(replaced, f"a new topic {topic}")
    poll_until(lambda: administrator.serves(topic, 1), "its partition")
