"""DeleteTopics by name and by id. Codes and messages are those of Apache Kafka 4.1.2."""

from typing import Any
from uuid import UUID, uuid4

import pytest

from tests.api.raw import ask, create_topics, created, unique
from tests.support.broker import KorvetServer

UNKNOWN = ("UNKNOWN_TOPIC_OR_PARTITION", "This server does not host this topic-partition.")
TWICE = ("INVALID_REQUEST", "The provided topic name maps to an ID that was already supplied.")


def delete(broker: KorvetServer, *topics: tuple[str | None, UUID | None]) -> list[Any]:
    asked = [{"name": name, "topic_id": topic_id} for name, topic_id in topics]
    answer = ask(broker.port, "delete_topics", 6, topics=asked, timeout=10_000)
    return [(one["name"], one["topic_id"], one["error_code"], one["error_message"]) for one in answer["responses"]]


def topic_with_id(broker: KorvetServer) -> tuple[str, UUID]:
    (result,) = create_topics(broker.port, {"name": unique(), "num_partitions": 2})
    return result["name"], result["topic_id"]


def code_of(broker: KorvetServer, name: str) -> str:
    asked = {"topics": [{"name": name, "topic_id": None}], "allow_auto_topic_creation": False}
    return str(ask(broker.port, "metadata", 9, **asked)["topics"][0]["error_code"])


@pytest.mark.parametrize("version", range(1, 6))
def test_topics_are_deleted_by_name(broker: KorvetServer, version: int) -> None:
    name, missing = created(broker.port), unique()
    answer = ask(broker.port, "delete_topics", version, topic_names=[name, missing], timeout=10_000)
    codes = {one["name"]: one["error_code"] for one in answer["responses"]}
    assert codes == {name: "NONE", missing: "UNKNOWN_TOPIC_OR_PARTITION"}
    assert code_of(broker, name) == "UNKNOWN_TOPIC_OR_PARTITION"


def test_topics_are_deleted_by_name_or_id(broker: KorvetServer) -> None:
    (first, first_id), (second, second_id) = topic_with_id(broker), topic_with_id(broker)
    results = delete(broker, (first, None), (None, second_id))
    assert sorted(results) == sorted([(first, first_id, "NONE", None), (second, second_id, "NONE", None)])
    assert {code_of(broker, name) for name in (first, second)} == {"UNKNOWN_TOPIC_OR_PARTITION"}


def test_deletion_leaves_nothing_and_frees_the_name(broker: KorvetServer) -> None:
    name, _ = topic_with_id(broker)
    delete(broker, (name, None))
    with broker.redis() as client:
        assert list(client.scan_iter(match=f"*{name}*", count=1000)) == []
    assert created(broker.port, name) == name


def test_impossible_deletions_are_refused(broker: KorvetServer) -> None:
    name, topic_id = topic_with_id(broker)
    unknown_id = uuid4()
    results = delete(broker, (None, None), (name, topic_id), (None, unknown_id), ("nope", None), ("a b", None))
    assert set(results) == {
        (None, None, "INVALID_REQUEST", "Neither topic name nor id were specified."),
        (name, topic_id, "INVALID_REQUEST", "You may not specify both topic name and topic id."),
        (None, unknown_id, "UNKNOWN_TOPIC_ID", "This server does not host this topic ID."),
        ("nope", None, *UNKNOWN),
        ("a b", None, *UNKNOWN),
    }
    assert code_of(broker, name) == "NONE"


def test_a_topic_given_twice_is_not_deleted(broker: KorvetServer) -> None:
    (one, _), (two, two_id), (three, three_id) = (topic_with_id(broker) for _ in range(3))
    results = delete(broker, (one, None), (one, None), (None, two_id), (None, two_id), (None, three_id), (three, None))
    assert set(results) == {
        (one, None, "INVALID_REQUEST", "Duplicate topic name."),
        (None, two_id, "INVALID_REQUEST", "Duplicate topic id."),
        (three, three_id, *TWICE),
    }
    assert {code_of(broker, name) for name in (one, two, three)} == {"NONE"}
