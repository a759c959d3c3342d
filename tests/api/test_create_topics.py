"""CreateTopics and CreatePartitions. Codes and messages are those of Apache Kafka 4.1.2."""

from typing import Any

import pytest

from tests.api.raw import ask, create_topics, created, errors, unique
from tests.support.broker import KorvetServer

VERSIONS = range(2, 8)
MANUAL = {"num_partitions": -1, "replication_factor": -1}


def partitions_of(broker: KorvetServer, name: str) -> int:
    asked = {"topics": [{"name": name, "topic_id": None}], "allow_auto_topic_creation": False}
    return len(ask(broker.port, "metadata", 9, **asked)["topics"][0]["partitions"])


def assignments(*pairs: tuple[int, list[int]]) -> list[dict[str, Any]]:
    return [{"partition_index": index, "broker_ids": broker_ids} for index, broker_ids in pairs]


def test_the_answer_shows_the_configs(broker: KorvetServer) -> None:
    configs = [{"name": "retention.ms", "value": " 5 "}]
    (result,) = create_topics(broker.port, {"name": unique(), "configs": configs})
    shown = {config["name"]: config for config in result["configs"]}
    assert shown["retention.ms"] == {
        "name": "retention.ms",
        "value": " 5 ",
        "read_only": False,
        "config_source": 1,
        "is_sensitive": False,
    }
    assert (shown["segment.ms"]["value"], shown["segment.ms"]["config_source"]) == ("604800000", 5)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_name_is_taken_once(broker: KorvetServer, version: int) -> None:
    name = created(broker.port)
    bad = [{"name": "foo", "value": "1"}]
    (result,) = create_topics(broker.port, {"name": name, "num_partitions": 0, "configs": bad}, version=version)
    assert result["error_code"] == "TOPIC_ALREADY_EXISTS"
    if version >= 5:
        assert result["error_message"] == f"Topic '{name}' already exists."
        assert (result["num_partitions"], result["replication_factor"], result["configs"]) == (-1, -1, [])


@pytest.mark.parametrize(
    "name, why",
    [
        ("a b", "'a b' contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'"),
        ("é", "'é' contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'"),
        ("", "the empty string is not allowed"),
        (".", "'.' is not allowed"),
        ("..", "'..' is not allowed"),
        ("x" * 250, f"the length of '{'x' * 250}' is longer than the max allowed length 249"),
    ],
)
def test_an_illegal_name_is_refused(broker: KorvetServer, name: str, why: str) -> None:
    refused = [(name, "INVALID_TOPIC_EXCEPTION", f"Topic name is invalid: {why}")]
    assert errors(create_topics(broker.port, {"name": name})) == refused


def test_a_name_that_collides_with_an_existing_one_is_refused(broker: KorvetServer) -> None:
    dotted = created(broker.port, f"{unique()}.x")
    underscored = dotted.replace(".", "_")
    message = f"Topic '{underscored}' collides with existing topic: {dotted}"
    results = create_topics(broker.port, {"name": underscored})
    assert errors(results) == [(underscored, "INVALID_TOPIC_EXCEPTION", message)]


def test_new_names_of_one_request_do_not_collide(broker: KorvetServer) -> None:
    base = unique()
    results = create_topics(broker.port, {"name": f"{base}.x"}, {"name": f"{base}_x"})
    assert [result["error_code"] for result in results] == ["NONE", "NONE"]


def test_kafkas_metadata_topic_cannot_be_created(broker: KorvetServer) -> None:
    name = "__cluster_metadata"
    message = f"Creation of internal topic {name} is prohibited."
    assert errors(create_topics(broker.port, {"name": name})) == [(name, "INVALID_REQUEST", message)]


@pytest.mark.parametrize(
    "values, code, message",
    [
        ({"num_partitions": 0}, "INVALID_PARTITIONS", "Number of partitions was set to an invalid non-positive value."),
        (
            {"num_partitions": -2},
            "INVALID_PARTITIONS",
            "Number of partitions was set to an invalid non-positive value.",
        ),
        (
            {"replication_factor": 0, "num_partitions": 0},
            "INVALID_REPLICATION_FACTOR",
            "Replication factor must be larger than 0, or -1 to use the default value.",
        ),
        (
            {"replication_factor": 2},
            "INVALID_REPLICATION_FACTOR",
            "Unable to replicate the partition 2 time(s): The target replication factor of 2 cannot be reached "
            "because only 1 broker(s) are registered.",
        ),
        (
            {"num_partitions": 10_001},
            "POLICY_VIOLATION",
            "Excessively large number of partitions per request.",
        ),
        ({"configs": [{"name": "foo", "value": "1"}]}, "INVALID_CONFIG", "Unknown topic config name: foo"),
        (
            {"configs": [{"name": "retention.ms", "value": "x"}], "num_partitions": 0},
            "INVALID_CONFIG",
            "Invalid value x for configuration retention.ms: Not a number of type LONG",
        ),
        (
            {"configs": [{"name": "retention.ms", "value": None}]},
            "INVALID_CONFIG",
            "Null value not supported for topic configs: retention.ms",
        ),
        (
            {**MANUAL, "assignments": assignments((0, [2]))},
            "INVALID_REPLICA_ASSIGNMENT",
            "The manual partition assignment includes broker 2, but no such broker is registered.",
        ),
        (
            {**MANUAL, "assignments": assignments((0, [1, 1]))},
            "INVALID_REPLICA_ASSIGNMENT",
            "The manual partition assignment includes the broker 1 more than once.",
        ),
        (
            {**MANUAL, "assignments": assignments((0, []))},
            "INVALID_REPLICA_ASSIGNMENT",
            "The manual partition assignment includes an empty replica list.",
        ),
        (
            {**MANUAL, "assignments": assignments((0, [1]), (2, [1]))},
            "INVALID_REPLICA_ASSIGNMENT",
            "partitions should be a consecutive 0-based integer sequence",
        ),
        (
            {**MANUAL, "assignments": assignments((0, [1]), (0, [1]))},
            "INVALID_REPLICA_ASSIGNMENT",
            "Found multiple manual partition assignments for partition 0",
        ),
        (
            {"replication_factor": -1, "assignments": assignments((0, [1]))},
            "INVALID_REQUEST",
            "A manual partition assignment was specified, but numPartitions was not set to -1.",
        ),
        (
            {"num_partitions": -1, "assignments": assignments((0, [1]))},
            "INVALID_REQUEST",
            "A manual partition assignment was specified, but replication factor was not set to -1.",
        ),
    ],
)
def test_impossible_topic_is_refused_and_nothing_is_created(
    broker: KorvetServer, values: dict[str, Any], code: str, message: str
) -> None:
    name = unique()
    for validate_only in (True, False):
        results = create_topics(broker.port, {"name": name, **values}, validate_only=validate_only)
        assert errors(results) == [(name, code, message)]
    assert partitions_of(broker, name) == 0


def test_a_name_given_twice_is_refused_and_the_others_are_created(broker: KorvetServer) -> None:
    twice, other = unique(), unique()
    results = create_topics(broker.port, {"name": twice}, {"name": twice}, {"name": other})
    assert errors(results) == [(other, "NONE", None), (twice, "INVALID_REQUEST", "Duplicate topic name.")]
    assert [partitions_of(broker, name) for name in (twice, other)] == [0, 1]


def test_the_last_of_two_values_for_a_config_counts(broker: KorvetServer) -> None:
    configs = [{"name": "retention.ms", "value": "1"}, {"name": "retention.ms", "value": "2"}]
    (result,) = create_topics(broker.port, {"name": unique(), "configs": configs})
    assert [config["value"] for config in result["configs"] if config["name"] == "retention.ms"] == ["2"]


# ---------------------------------------------------------------------- CreatePartitions


def grow(broker: KorvetServer, *topics: dict[str, Any], version: int = 3, validate_only: bool = False) -> list[Any]:
    asked = [{"assignments": None, **topic} for topic in topics]
    answer = ask(broker.port, "create_partitions", version, topics=asked, timeout=10_000, validate_only=validate_only)
    return errors(answer["results"])


@pytest.mark.parametrize(
    "values, code, message",
    [
        ({"count": 2}, "INVALID_PARTITIONS", "Topic already has 2 partition(s)."),
        ({"count": 1}, "INVALID_PARTITIONS", "The topic {} currently has 2 partition(s); 1 would not be an increase."),
        (
            {"count": -1},
            "INVALID_PARTITIONS",
            "The topic {} currently has 2 partition(s); -1 would not be an increase.",
        ),
        (
            {"count": 3, "assignments": [{"broker_ids": [2]}]},
            "INVALID_REPLICA_ASSIGNMENT",
            "The manual partition assignment includes broker 2, but no such broker is registered.",
        ),
        (
            {"count": 3, "assignments": []},
            "INVALID_REPLICA_ASSIGNMENT",
            "Attempted to add 1 additional partition(s), but only 0 assignment(s) were specified.",
        ),
        ({"count": 10_001}, "POLICY_VIOLATION", "A topic has at most 10000 partitions."),
    ],
)
def test_impossible_number_of_new_partitions_is_refused(
    broker: KorvetServer, values: dict[str, Any], code: str, message: str
) -> None:
    name = created(broker.port, partitions=2)
    assert grow(broker, {"name": name, **values}) == [(name, code, message.format(name))]
    assert partitions_of(broker, name) == 2


def test_unknown_topics_and_names_given_twice_do_not_grow(broker: KorvetServer) -> None:
    name, other, missing = created(broker.port), created(broker.port), unique()
    assert grow(
        broker,
        {"name": name, "count": 2},
        {"name": missing, "count": 2},
        {"name": name, "count": 3},
        {"name": other, "count": 2, "assignments": [{"broker_ids": [1]}]},
    ) == [
        (name, "INVALID_REQUEST", "Duplicate topic name."),
        (missing, "UNKNOWN_TOPIC_OR_PARTITION", None),
        (other, "NONE", None),
    ]
