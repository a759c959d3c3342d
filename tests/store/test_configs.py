"""korvet judges config values as Kafka 4.1.2 does; the messages here are Kafka's answers to CreateTopics."""

import json
from uuid import UUID

import pytest
from structlog.testing import capture_logs

from korvet.configs.brokers import BROKER_CONFIGS
from korvet.configs.groups import GROUP_CONFIGS
from korvet.configs.topics import TOPIC_CONFIGS
from korvet.configs.types import Kind, normal, parse, problem, topic_problem
from korvet.configs.values import BrokerValues
from korvet.errors import ConfigError
from korvet.patterns import MOST_CHARACTERS
from korvet.store.catalog.settings import Settings
from korvet.store.catalog.topic import Topic


def _why(**configs: str | None) -> str | None:
    return topic_problem({name.replace("_", "."): value for name, value in configs.items()}, TOPIC_CONFIGS, {})


@pytest.mark.parametrize(
    "name, value, why",
    [
        ("retention.ms", "abc", "Not a number of type LONG"),
        ("retention.ms", "", "Not a number of type LONG"),
        ("retention.ms", "0x5", "Not a number of type LONG"),
        ("retention.ms", "1_000", "Not a number of type LONG"),
        ("retention.ms", "1e3", "Not a number of type LONG"),
        ("retention.ms", "99999999999999999999", "Not a number of type LONG"),
        ("retention.ms", "-2", "Value must be at least -1"),
        ("max.message.bytes", "-1", "Value must be at least 0"),
        ("max.message.bytes", "99999999999", "Not a number of type INT"),
        ("segment.bytes", "1", "Value must be at least 1048576"),
        ("flush.messages", "0", "Value must be at least 1"),
        ("segment.index.bytes", "3", "Value must be at least 4"),
        ("local.retention.bytes", "-3", "Value must be at least -2"),
        ("compression.zstd.level", "-131073", "Value must be at least -131072"),
        ("compression.lz4.level", "20", "Value must be no more than 17"),
        ("compression.gzip.level", "0", "Value must be between 1 and 9 or equal to -1"),
        ("min.cleanable.dirty.ratio", "x", "Not a number of type DOUBLE"),
        ("preallocate", "maybe", "Expected value to be either true or false"),
        ("cleanup.policy", "foo", "String must be one of: compact, delete"),
        ("cleanup.policy", "DELETE", "String must be one of: compact, delete"),
        ("compression.type", "Producer", "String must be one of: uncompressed, zstd, lz4, snappy, gzip, producer"),
        ("message.timestamp.type", "createtime", "String must be one of: CreateTime, LogAppendTime"),
        ("min.insync.replicas", "0", "Value must be at least 1"),
    ],
)
def test_invalid_value_is_refused_in_kafkas_words(name: str, value: str, why: str) -> None:
    message = f"Invalid value {value} for configuration {name}: {why}"
    assert topic_problem({name: value}, TOPIC_CONFIGS, {}) == message


def test_number_is_shown_as_it_was_read() -> None:
    ratio = "Invalid value 2.0 for configuration min.cleanable.dirty.ratio: Value must be no more than 1"
    assert _why(min_cleanable_dirty_ratio="2") == ratio


def test_first_wrong_element_of_a_list_is_shown() -> None:
    empty = "Invalid value  for configuration cleanup.policy: String must be one of: compact, delete"
    assert _why(cleanup_policy="delete,") == empty


@pytest.mark.parametrize("value", ["foo", "0:1:2"])
def test_throttled_replicas_are_pairs_or_a_star(value: str) -> None:
    name = "leader.replication.throttled.replicas"
    assert topic_problem({name: value}, TOPIC_CONFIGS, {}) == (
        f"Invalid value [{value}] for configuration {name}: {name} must be the literal '*' or a list of replicas "
        "in the following format: [partitionId]:[brokerId],[partitionId]:[brokerId],..."
    )


@pytest.mark.parametrize(
    "name, value",
    [
        ("retention.ms", " 5 "),
        ("retention.ms", "+5"),
        ("retention.bytes", "-2"),
        ("min.cleanable.dirty.ratio", "1e-1"),
        ("min.cleanable.dirty.ratio", " .5 "),
        ("min.cleanable.dirty.ratio", "0.5f"),
        ("min.cleanable.dirty.ratio", "NaN"),
        ("cleanup.policy", "delete,delete"),
        ("preallocate", " True "),
        ("compression.type", " producer "),
        ("leader.replication.throttled.replicas", "*"),
        ("leader.replication.throttled.replicas", " 0:1 , 1:1 "),
        ("follower.replication.throttled.replicas", ""),
        ("segment.bytes", "1048576"),
        ("message.timestamp.type", "LogAppendTime"),
        ("cleanup.policy", ""),
        ("flush.ms", "1000"),
        ("flush.messages", "1"),
        ("unclean.leader.election.enable", "true"),
    ],
)
def test_value_that_kafka_accepts_is_accepted(name: str, value: str) -> None:
    assert topic_problem({name: value}, TOPIC_CONFIGS, {}) is None


@pytest.mark.parametrize(
    ("kind", "typed", "printed"),
    [
        (Kind.LONG, " +007 ", "7"),
        (Kind.BOOLEAN, " True", "true"),
        (Kind.LIST, " a ,b,, c ", "a,b,,c"),
        (Kind.STRING, " gzip ", "gzip"),
        (Kind.DOUBLE, "1", "1.0"),
        (Kind.DOUBLE, ".5f", "0.5"),
        (Kind.DOUBLE, "0.001", "0.001"),
        (Kind.DOUBLE, "-0.0009", "-9.0E-4"),
        (Kind.DOUBLE, "1e7", "1.0E7"),
        (Kind.DOUBLE, "123456789", "1.23456789E8"),
        (Kind.DOUBLE, "0", "0.0"),
        (Kind.DOUBLE, "-Infinity", "-Infinity"),
        (Kind.DOUBLE, "NaN", "NaN"),
        (Kind.INT, " soon ", "soon"),
    ],
)
def test_text_is_printed_as_kafka_prints_its_value(kind: Kind, typed: str, printed: str) -> None:
    assert normal(kind, typed) == printed


def test_unknown_names_and_nulls_are_refused_before_values() -> None:
    assert _why(retention_ms="x", foo="1") == "Unknown topic config name: foo"
    assert _why(retention_ms=None, foo="1") == "Null value not supported for topic configs: retention.ms"


def test_configs_that_contradict_each_other_are_refused() -> None:
    assert _why(min_compaction_lag_ms="5", max_compaction_lag_ms="3") == (
        "conflict topic config setting min.compaction.lag.ms (5) > max.compaction.lag.ms (3)"
    )


def test_config_that_stays_is_not_checked_again() -> None:
    """A bound may be younger than a config that was stored."""
    stored = {"korvet.value.schema": json.dumps({"pattern": "a" * (MOST_CHARACTERS + 1)})}
    assert topic_problem(stored, TOPIC_CONFIGS, {}) is not None
    assert topic_problem({**stored, "retention.ms": "1"}, TOPIC_CONFIGS, stored) is None
    assert topic_problem({**stored, "retention.ms": "x"}, TOPIC_CONFIGS, stored) is not None


def test_tiered_storage_is_off() -> None:
    assert _why(remote_storage_enable="true") == (
        "Tiered Storage functionality is disabled in the broker. Topic cannot be configured with remote log storage."
    )
    assert _why(remote_storage_enable="false") is None


def _tiered(**configs: str) -> str | None:
    named = {name.replace("_", "."): value for name, value in configs.items()}
    cluster = {"retention.bytes": "100"}
    return topic_problem(
        {"remote.storage.enable": "true", **named},
        TOPIC_CONFIGS,
        {},
        lambda name: cluster.get(name, TOPIC_CONFIGS[name].default or ""),
        has_tier=True,
    )


@pytest.mark.parametrize(
    ("configs", "why"),
    [
        ({}, None),
        ({"local_retention_ms": "5", "local_retention_bytes": "100"}, None),
        ({"retention_ms": "-1", "retention_bytes": "-1", "local_retention_ms": "-1"}, None),
        ({"cleanup_policy": "delete,delete"}, None),
        ({"cleanup_policy": "compact"}, "Remote log storage only supports topics with cleanup.policy=delete"),
        ({"cleanup_policy": "delete,compact"}, "Remote log storage only supports topics with cleanup.policy=delete"),
        (
            {"local_retention_bytes": "101"},
            "Invalid value 101 for configuration local.retention.bytes: Value must not be more than retention.bytes "
            "property value: 100",
        ),
        (
            {"retention_ms": "7", "local_retention_ms": "-1"},
            "Invalid value -1 for configuration local.retention.ms: Value must not be -1 as retention.ms value is set "
            "as 7.",
        ),
        ({"remote_log_copy_disable": "true"}, None),
        (
            {"remote_log_copy_disable": "true", "local_retention_bytes": "99"},
            "When `remote.log.copy.disable` is set to true, the `local.retention.bytes` and `retention.bytes` must be "
            "set to the identical value because there will be no more logs copied to the remote storage.",
        ),
    ],
)
def test_limits_of_a_topic_in_the_tier_are_judged_as_by_kafka(configs: dict[str, str], why: str | None) -> None:
    assert _tiered(**configs) == why


def test_topic_stays_in_the_tier() -> None:
    stored = {"remote.storage.enable": " True"}
    changes: list[dict[str, str | None]] = [
        {},
        {"remote.storage.enable": "false"},
        {"remote.log.delete.on.disable": "true"},
    ]
    for change in changes:
        why = topic_problem(change, TOPIC_CONFIGS, stored, has_tier=True)
        assert why is not None
        assert why.startswith("Korvet does not disable remote storage of a topic.")
    # No front-end of the namespace may have its tier at the moment.
    assert topic_problem({**stored, "retention.ms": "1"}, TOPIC_CONFIGS, stored) is None


def test_every_default_is_valid() -> None:
    for config in [*TOPIC_CONFIGS.values(), *BROKER_CONFIGS.values(), *GROUP_CONFIGS.values()]:
        if config.default is not None:
            assert problem(config, config.default) is None


def test_every_synonym_is_a_broker_config() -> None:
    synonyms = {
        config.synonym
        for config in [*TOPIC_CONFIGS.values(), *BROKER_CONFIGS.values(), *GROUP_CONFIGS.values()]
        if config.synonym
    }
    assert synonyms <= set(BROKER_CONFIGS)


def test_values_are_parsed_by_kind() -> None:
    assert parse(Kind.LONG, " -1 ") == -1
    assert parse(Kind.DOUBLE, ".5d") == 0.5
    assert parse(Kind.BOOLEAN, "TRUE") is True
    assert parse(Kind.LIST, " a , b ") == ("a", "b")
    assert parse(Kind.LIST, "") == ()


def test_front_end_reads_a_value_as_the_check_does() -> None:
    """An authorizer of blanks is none, though its text is not empty; another spelling of true is true."""
    set_ = BrokerValues(
        {"authorizer.class.name": " \t", "allow.everyone.if.no.acl.found": " TRUE", "num.partitions": "x"}
    )
    assert set_.text("authorizer.class.name") == ""
    assert set_.boolean("allow.everyone.if.no.acl.found")
    with pytest.raises(ConfigError, match=r"^Invalid value x for configuration num\.partitions: Not a number"):
        set_.integer("num.partitions")
    assert BrokerValues({}).integer("socket.request.max.bytes") == 104_857_600
    assert BrokerValues({}).words("sasl.oauthbearer.expected.audience") == ()


def test_text_in_redis_of_another_type_counts_as_not_set() -> None:
    settings = Settings({"log.retention.ms": "5"})
    settings._take_configs(
        [
            (b"log.retention.ms", b"soon"),
            (b"log.cleaner.backoff.ms", b"\xff"),
            (b"\xff", b"1"),
            (b"group:g:consumer.session.timeout.ms", b"x"),
        ]
    )
    topic = Topic(name="t", id=UUID(int=1), partitions=1, configs={"retention.ms": "1e3", "max.message.bytes": "7"})
    with capture_logs() as lines:
        for _ in range(2):
            assert settings.integer(topic, "retention.ms") == 5
            assert settings.integer(topic, "max.message.bytes") == 7
            assert settings.integer(None, "log.cleaner.backoff.ms") == 15_000
            assert settings.group_setting("g", "consumer.session.timeout.ms") == "45000"
    assert [line["config"] for line in lines] == ["retention.ms"] * 2 + [
        "log.cleaner.backoff.ms", "consumer.session.timeout.ms",
    ]  # fmt: skip
