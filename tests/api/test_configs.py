"""DescribeConfigs, IncrementalAlterConfigs and AlterConfigs. Codes and messages are those of Apache Kafka 4.1.2."""

from collections.abc import Iterator
from typing import Any

import pytest

from korvet.configs.groups import GROUP_CONFIGS
from korvet.configs.topics import TOPIC_CONFIGS
from korvet.store.keys import Namespace
from tests.api.groups import stable
from tests.api.raw import ask, created, unique
from tests.support.broker import KorvetServer, running_broker
from tests.support.ported import kafka

TOPIC, BROKER, LOGGER, METRICS, GROUP = 2, 4, 8, 16, 32
SET, DELETE, APPEND, SUBTRACT = range(4)
Alter = tuple[str, int, str | None]
LISTENERS_OWN = "listener.name.default.max.connections"
MALFORMED = "This most likely occurs because of a request being malformed"


@pytest.fixture(scope="module")
def own() -> Iterator[KorvetServer]:
    """A broker whose cluster-wide configs may be changed."""
    settings = {"log.retention.bytes": "1000", "connections.max.idle.ms": "5000", LISTENERS_OWN: "1000"}
    with running_broker(broker=settings) as server:
        yield server


def describe(
    broker: KorvetServer, *resources: tuple[int, str, list[str] | None], version: int = 4, full: bool = True
) -> list[Any]:
    asked = [
        {"resource_type": kind, "resource_name": name, "configuration_keys": keys} for kind, name, keys in resources
    ]
    flags = {"include_synonyms": full, "include_documentation": full} if version >= 3 else {"include_synonyms": full}
    return list(ask(broker.port, "describe_configs", version, resources=asked, **flags)["results"])


def shown(broker: KorvetServer, kind: int, name: str, config: str) -> tuple[Any, int, list[tuple[str, Any, int]]]:
    """A config's value, source and synonyms."""
    (result,) = describe(broker, (kind, name, [config]))
    (entry,) = result["configs"]
    synonyms = [(synonym["name"], synonym["value"], synonym["source"]) for synonym in entry["synonyms"]]
    return entry["value"], entry["config_source"], synonyms


def own_configs(broker: KorvetServer, topic: str) -> dict[str, str]:
    """The configs of a topic's own."""
    (result,) = describe(broker, (TOPIC, topic, None))
    return {config["name"]: config["value"] for config in result["configs"] if config["config_source"] == 1}


def alter(
    broker: KorvetServer, *resources: tuple[int, str, list[Alter]], version: int = 1, validate_only: bool = False
) -> list[tuple[str, str | None]]:
    asked = [
        {
            "resource_type": kind,
            "resource_name": name,
            "configs": [{"name": key, "config_operation": op, "value": value} for key, op, value in changes],
        }
        for kind, name, changes in resources
    ]
    answer = ask(broker.port, "incremental_alter_configs", version, resources=asked, validate_only=validate_only)
    return [(one["error_code"], one["error_message"]) for one in answer["responses"]]


def replace(
    broker: KorvetServer,
    *resources: tuple[int, str, list[tuple[str, str | None]]],
    version: int = 2,
    validate_only: bool = False,
) -> list[tuple[str, str | None]]:
    asked = [
        {
            "resource_type": kind,
            "resource_name": name,
            "configs": [{"name": key, "value": value} for key, value in values],
        }
        for kind, name, values in resources
    ]
    answer = ask(broker.port, "alter_configs", version, resources=asked, validate_only=validate_only)
    return [(one["error_code"], one["error_message"]) for one in answer["responses"]]


OK = ("NONE", None)

# ---------------------------------------------------------------------- describing


@pytest.mark.parametrize("version", range(1, 5))
@pytest.mark.parametrize("keys", [None, []])
def test_a_topic_has_all_of_kafkas_configs_and_korvets(
    broker: KorvetServer, version: int, keys: list[str] | None
) -> None:
    name = created(broker.port, retention_ms="7")
    (result,) = describe(broker, (TOPIC, name, keys), version=version)
    assert (result["error_code"], result["error_message"]) == ("NONE", "")
    assert {config["name"] for config in result["configs"]} == TOPIC_CONFIGS.keys()
    (retention,) = [config for config in result["configs"] if config["name"] == "retention.ms"]
    assert (retention["value"], retention["read_only"], retention["config_source"]) == ("7", False, 1)
    assert retention["synonyms"] == [{"name": "retention.ms", "value": "7", "source": 1}]
    if version >= 3:
        assert (retention["config_type"], bool(retention["documentation"])) == (5, True)


def test_synonyms_and_documentation_come_only_when_asked_for(broker: KorvetServer) -> None:
    name = created(broker.port)
    (result,) = describe(broker, (TOPIC, name, ["segment.bytes"]), full=False)
    assert (result["configs"][0]["synonyms"], result["configs"][0]["documentation"]) == ([], None)


def test_only_the_configs_asked_for_are_shown(broker: KorvetServer) -> None:
    name = created(broker.port)
    results = describe(broker, (TOPIC, name, ["retention.ms", "foo", "retention.ms"]), (TOPIC, name, ["segment.ms"]))
    assert [[config["name"] for config in one["configs"]] for one in results] == [["retention.ms"], ["segment.ms"]]


def test_missing_resources_are_named(broker: KorvetServer) -> None:
    results = describe(
        broker,
        (TOPIC, "nope", None),
        (TOPIC, "a b", None),
        (BROKER, "2", None),
        (BROKER, "x", None),
        (GROUP, "", None),
    )
    assert [(one["error_code"], one["error_message"]) for one in results] == [
        ("UNKNOWN_TOPIC_OR_PARTITION", ""),
        (
            "INVALID_TOPIC_EXCEPTION",
            "Topic name is invalid: 'a b' contains one or more characters "
            "other than ASCII alphanumerics, '.', '_' and '-'",
        ),
        ("INVALID_REQUEST", "Unexpected broker id, expected 1 or empty string, but received 2"),
        ("INVALID_REQUEST", "Broker id must be an integer, but it is: x"),
        ("INVALID_REQUEST", "Group name must not be empty"),
    ]


def test_group_shows_its_own_id_and_locator(broker: KorvetServer) -> None:
    group = unique("group")
    (absent,) = describe(broker, (GROUP, group, None))
    assert (absent["error_code"], [config["name"] for config in absent["configs"]]) == (
        "NONE",
        list(GROUP_CONFIGS),
    )
    stable(broker.port, group)
    (found,) = describe(broker, (GROUP, group, None))
    shown = {config["name"]: (config["value"], config["read_only"]) for config in found["configs"]}
    assert shown["korvet.group.locator"] == (f"default/consumer-groups/{group}", True)
    assert shown["korvet.group.id"][0].startswith("cgp_")


def test_an_unknown_type_fails_the_request(broker: KorvetServer) -> None:
    results = describe(broker, (TOPIC, created(broker.port), None), (99, "x", None))
    assert [one["error_code"] for one in results] == ["INVALID_REQUEST"] * 2
    assert results[0]["error_message"].startswith(MALFORMED)


def test_broker_shows_the_config_file_and_the_defaults(own: KorvetServer) -> None:
    assert shown(own, BROKER, "1", "log.retention.bytes") == (
        "1000",
        4,
        [("log.retention.bytes", "1000", 4), ("log.retention.bytes", "-1", 5)],
    )
    assert shown(own, BROKER, "1", "connections.max.idle.ms")[:2] == ("5000", 4)
    assert shown(own, BROKER, "1", "log.retention.ms") == (None, 5, [])
    of_all = ("max.connections", str(2**31 - 1), 5)
    assert shown(own, BROKER, "1", LISTENERS_OWN) == ("1000", 4, [(LISTENERS_OWN, "1000", 4), of_all])
    (result,) = describe(own, (BROKER, "1", ["default.replication.factor", "num.partitions"]))
    assert [config["read_only"] for config in result["configs"]] == [True, False]


# ---------------------------------------------------------------------- altering topics


@pytest.mark.parametrize("version", [0, 1])
def test_configs_are_set_and_deleted(broker: KorvetServer, version: int) -> None:
    name = created(broker.port, retention_ms="5")
    changes: list[Alter] = [("retention.bytes", SET, "6"), ("retention.ms", DELETE, None), ("foo", DELETE, None)]
    assert alter(broker, (TOPIC, name, changes), version=version, validate_only=True) == [OK]
    assert own_configs(broker, name) == {"retention.ms": "5"}
    assert alter(broker, (TOPIC, name, changes), version=version) == [OK]
    assert own_configs(broker, name) == {"retention.bytes": "6"}


def test_lists_are_appended_to_and_subtracted_from(broker: KorvetServer) -> None:
    name = created(broker.port)
    throttled = "leader.replication.throttled.replicas"
    assert alter(broker, (TOPIC, name, [(throttled, APPEND, "0:1")])) == [OK]
    assert alter(broker, (TOPIC, name, [(throttled, APPEND, "1:1,0:1"), ("cleanup.policy", SUBTRACT, "delete")])) == [
        OK
    ]
    assert own_configs(broker, name) == {throttled: "0:1,1:1", "cleanup.policy": ""}
    assert alter(broker, (TOPIC, name, [(throttled, SUBTRACT, "0:1"), ("cleanup.policy", APPEND, "delete")])) == [OK]
    assert own_configs(broker, name) == {throttled: "1:1", "cleanup.policy": "delete"}


@pytest.mark.parametrize(
    "changes, code, message",
    [
        ([("foo", SET, "5")], "INVALID_CONFIG", "Unknown topic config name: foo"),
        (
            [("retention.ms", SET, "x")],
            "INVALID_CONFIG",
            "Invalid value x for configuration retention.ms: Not a number of type LONG",
        ),
        (
            [("retention.ms", SET, None), ("foo", APPEND, None)],
            "INVALID_REQUEST",
            "Null value not supported for : retention.ms, foo",
        ),
        (
            [("retention.ms", APPEND, "5")],
            "INVALID_CONFIG",
            "Can't APPEND to key retention.ms because its type is not LIST.",
        ),
        ([("foo", SUBTRACT, "5")], "INVALID_CONFIG", "Can't SUBTRACT to key foo because its type is not LIST."),
        (
            [("retention.ms", SET, "5"), ("retention.ms", DELETE, None)],
            "INVALID_REQUEST",
            "Error due to duplicate config keys",
        ),
        ([("retention.ms", 9, "5")], "INVALID_REQUEST", "Unknown operations type 9"),
    ],
)
def test_a_wrong_change_is_refused_as_a_whole(
    broker: KorvetServer, changes: list[Alter], code: str, message: str
) -> None:
    name = created(broker.port)
    assert alter(broker, (TOPIC, name, [("retention.bytes", SET, "9"), *changes])) == [(code, message)]
    assert own_configs(broker, name) == {}


def test_each_resource_is_changed_alone_and_named_once(broker: KorvetServer) -> None:
    name, twice = created(broker.port), created(broker.port)
    change: list[Alter] = [("retention.ms", SET, "5")]
    once = ("INVALID_REQUEST", "Each resource must appear at most once.")
    assert alter(
        broker, (TOPIC, twice, change), (TOPIC, "nope", change), (TOPIC, name, change), (TOPIC, twice, change)
    ) == [once, ("UNKNOWN_TOPIC_OR_PARTITION", "The topic 'nope' does not exist."), OK, once]
    assert (own_configs(broker, name), own_configs(broker, twice)) == ({"retention.ms": "5"}, {})


def test_unchangeable_resources_are_named(broker: KorvetServer) -> None:
    change: list[Alter] = [("retention.ms", SET, "5")]
    assert alter(
        broker,
        (TOPIC, "", change),
        (3, "x", change),
        (LOGGER, "1", change),
        (BROKER, "2", change),
        (BROKER, "x", change),
    ) == [
        ("INVALID_REQUEST", "Default topic resources are not allowed."),
        ("INVALID_REQUEST", "Unknown resource type 3"),
        ("INVALID_REQUEST", "Korvet has no configs of resource type BROKER_LOGGER"),
        ("INVALID_REQUEST", "Unexpected broker id, expected 1, but received 2"),
        ("INVALID_REQUEST", "Node id must be an integer, but it is: x"),
    ]


@pytest.mark.parametrize("version", range(3))
def test_alter_configs_replaces_everything(broker: KorvetServer, version: int) -> None:
    name = created(broker.port, retention_ms="5")
    assert replace(broker, (TOPIC, name, [("retention.bytes", "6")]), version=version, validate_only=True) == [OK]
    assert own_configs(broker, name) == {"retention.ms": "5"}
    assert replace(broker, (TOPIC, name, [("retention.bytes", "6")]), version=version) == [OK]
    assert own_configs(broker, name) == {"retention.bytes": "6"}
    assert replace(broker, (TOPIC, name, []), version=version) == [OK]
    assert own_configs(broker, name) == {}


def test_alter_configs_refuses_changes_as_incremental_alter_configs_does(broker: KorvetServer) -> None:
    name = created(broker.port, retention_ms="5")
    assert replace(broker, (TOPIC, name, [("retention.ms", None)]), (TOPIC, unique(), []))[0] == (
        "INVALID_REQUEST",
        "Null value not supported for : retention.ms",
    )
    assert replace(broker, (TOPIC, name, [("foo", "1")])) == [("INVALID_CONFIG", "Unknown topic config name: foo")]
    assert own_configs(broker, name) == {"retention.ms": "5"}


# ---------------------------------------------------------------------- altering the cluster


def test_the_clusters_configs_stand_in_for_topics(own: KorvetServer) -> None:
    name = created(own.port)
    assert alter(own, (BROKER, "", [("log.retention.ms", SET, "7")])) == [OK]
    chain = [("log.retention.ms", "7", 3), ("log.retention.hours", "168", 5)]
    assert shown(own, TOPIC, name, "retention.ms") == ("7", 3, chain)
    assert shown(own, BROKER, "1", "log.retention.ms") == ("7", 3, chain)
    assert shown(own, BROKER, "", "log.retention.ms") == ("7", 3, [("log.retention.ms", "7", 3)])
    assert alter(own, (TOPIC, name, [("retention.ms", SET, "8")])) == [OK]
    assert shown(own, TOPIC, name, "retention.ms") == ("8", 1, [("retention.ms", "8", 1), *chain])
    assert alter(own, (BROKER, "", [("log.retention.ms", DELETE, None)])) == [OK]
    assert describe(own, (BROKER, "", None))[0]["configs"] == []


@pytest.mark.parametrize(
    "resource, change, message",
    [
        (
            "",
            ("log.retention.ms", SET, "x"),
            "Invalid value x for configuration log.retention.ms: Not a number of type LONG",
        ),
        ("", ("log.retention.hours", SET, "5"), "Cannot update these configs dynamically: Set(log.retention.hours)"),
        ("", (LISTENERS_OWN, SET, "5"), f"Cannot update these configs dynamically: Set({LISTENERS_OWN})"),
        ("", ("foo", SET, "5"), "Unknown broker config name: foo"),
        ("1", ("foo", SET, "5"), "Unknown broker config name: foo"),
        ("1", ("log.retention.hours", SET, "5"), "Cannot update these configs dynamically: Set(log.retention.hours)"),
    ],
)
def test_unchangeable_broker_configs_are_refused(own: KorvetServer, resource: str, change: Alter, message: str) -> None:
    assert alter(own, (BROKER, resource, [change])) == [("INVALID_REQUEST", message)]


def test_cluster_wide_configs_outlive_the_front_end(own: KorvetServer) -> None:
    name = created(own.port, segment_ms="77")
    assert alter(own, (BROKER, "", [("num.partitions", SET, "4")])) == [OK]
    own.restart()
    assert shown(own, BROKER, "1", "num.partitions")[:2] == ("4", 3)
    assert own_configs(own, name) == {"segment.ms": "77"}
    assert alter(own, (BROKER, "", [("num.partitions", DELETE, None)])) == [OK]


def test_brokers_own_configs_are_kept_and_shown_and_count_nowhere(own: KorvetServer) -> None:
    name, default = created(own.port), ("log.retention.hours", "168", 5)
    assert alter(own, (BROKER, "", [("log.retention.ms", SET, "7")])) == [OK]
    of_all = [("log.retention.ms", "7", 3), default]
    assert alter(own, (BROKER, "01", [("log.retention.ms", SET, " 5")]), (BROKER, "", [])) == [OK, OK]
    own.restart()
    assert shown(own, BROKER, "+1", "log.retention.ms") == ("5", 2, [("log.retention.ms", " 5", 2), *of_all])
    assert shown(own, TOPIC, name, "retention.ms") == ("7", 3, of_all)
    assert replace(own, (BROKER, "", [])) == [OK]
    assert shown(own, BROKER, "1", "log.retention.ms") == ("5", 2, [("log.retention.ms", " 5", 2), default])
    assert alter(own, (BROKER, "1", [("log.retention.ms", DELETE, None)])) == [OK]
    assert shown(own, BROKER, "1", "log.retention.ms") == (None, 5, [])


def test_value_is_shown_in_kafkas_form_however_an_older_korvet_or_a_client_typed_it(own: KorvetServer) -> None:
    name = created(
        own.port, retention_ms=" +086400000 ", cleanup_policy="compact, delete", min_cleanable_dirty_ratio="1.f"
    )
    assert own_configs(own, name) == {
        "retention.ms": "86400000", "cleanup.policy": "compact,delete", "min.cleanable.dirty.ratio": "1.0",
    }  # fmt: skip


def test_number_of_groups_with_configs_of_their_own_is_bounded() -> None:
    """Each change of a config reads and writes all groups' configs in one call, and every front-end keeps them."""
    session, most = "consumer.session.timeout.ms", 1000
    with running_broker() as own:
        with own.redis() as client:
            stored = {f"group:g{at}:{session}": "50000" for at in range(most - 1)}
            client.hset(Namespace().catalog.configs, mapping=stored)
        assert alter(own, (GROUP, f"g{most - 1}", [(session, SET, "50000")])) == [("NONE", None)]
        full = "POLICY_VIOLATION", "1000 resources of this type have configs of their own already."
        assert alter(own, (GROUP, "other", [(session, SET, "50000")])) == [full]
        assert alter(own, (GROUP, "g0", [(session, SET, "51000")])) == [("NONE", None)]
        assert alter(own, (GROUP, "g0", [(session, DELETE, None)])) == [("NONE", None)]
        assert alter(own, (GROUP, "other", [(session, SET, "50000")])) == [("NONE", None)]


def test_a_group_that_does_not_exist_has_configs(broker: KorvetServer) -> None:
    group, session = unique("g:ü{}%"), "consumer.session.timeout.ms"
    assert shown(broker, GROUP, group, session) == ("45000", 5, [(session, "45000", 5)])
    assert alter(broker, (GROUP, group, [(session, SET, "50000")])) == [("NONE", None)]
    assert shown(broker, GROUP, group, session) == ("50000", 8, [(session, "50000", 8)])
    assert shown(broker, GROUP, unique("g"), session)[0] == "45000"
    assert alter(broker, (GROUP, group, [(session, DELETE, None)])) == [("NONE", None)]
    assert shown(broker, GROUP, group, session) == ("45000", 5, [(session, "45000", 5)])


@kafka("GroupConfigTest.testInvalidProps", "GroupConfigTest.testFromPropsInvalid")
@pytest.mark.parametrize(
    ("config", "value", "message"),
    [
        ("consumer.foo", "1", "Unknown group config name: consumer.foo"),
        ("korvet.group.id", "x", "Unknown group config name: korvet.group.id"),
        (
            "consumer.session.timeout.ms",
            "soon",
            "Invalid value soon for configuration consumer.session.timeout.ms: Not a number of type INT",
        ),
        (
            "consumer.session.timeout.ms",
            "0",
            "Invalid value 0 for configuration consumer.session.timeout.ms: Value must be at least 1",
        ),
        (
            "consumer.session.timeout.ms",
            "44999",
            "consumer.session.timeout.ms must be greater than or equal to group.consumer.min.session.timeout.ms",
        ),
        (
            "consumer.session.timeout.ms",
            "60001",
            "consumer.session.timeout.ms must be less than or equal to group.consumer.max.session.timeout.ms",
        ),
        (
            "consumer.heartbeat.interval.ms",
            "4999",
            "consumer.heartbeat.interval.ms must be greater than or equal to group.consumer.min.heartbeat.interval.ms",
        ),
        (
            "consumer.heartbeat.interval.ms",
            "15001",
            "consumer.heartbeat.interval.ms must be less than or equal to group.consumer.max.heartbeat.interval.ms",
        ),
    ],
)
def test_impossible_group_config_is_refused(broker: KorvetServer, config: str, value: str, message: str) -> None:
    group = unique("g")
    assert alter(broker, (GROUP, group, [(config, SET, value)])) == [("INVALID_CONFIG", message)]
    assert {entry["config_source"] for entry in describe(broker, (GROUP, group, None))[0]["configs"]} == {5}


@kafka("ControllerConfigurationValidatorTest.testInvalidGroupNameGroupConfig")
def test_group_configs_need_a_group(broker: KorvetServer) -> None:
    change: list[Alter] = [("consumer.session.timeout.ms", SET, "50000")]
    assert alter(broker, (GROUP, "", change)) == [("INVALID_REQUEST", "Default group resources are not allowed.")]


def test_replacing_configs_of_group_or_cluster_leaves_the_others_alone(own: KorvetServer) -> None:
    first, second, interval = unique("g"), unique("g"), "consumer.heartbeat.interval.ms"
    both: list[Alter] = [(interval, SET, "6000"), ("consumer.session.timeout.ms", SET, "46000")]
    assert alter(own, (GROUP, first, both), (GROUP, second, both)) == [("NONE", None)] * 2
    assert replace(own, (BROKER, "", [("num.partitions", "1")])) == [("NONE", None)]
    assert replace(own, (GROUP, first, [(interval, "7000")])) == [("NONE", None)]
    assert [shown(own, GROUP, first, name)[:2] for name, _, _ in both] == [("7000", 8), ("45000", 5)]
    assert [shown(own, GROUP, second, name)[:2] for name, _, _ in both] == [("6000", 8), ("46000", 8)]
    assert replace(own, (BROKER, "", [])) == [("NONE", None)]
