"""Configs: korvet's own, the cluster's and a broker's, their bounds, and restarts. The oracle compares the rest."""

from collections.abc import Iterator
from typing import Any

import pytest

from korvet.configs.groups import GROUP_CONFIGS
from korvet.configs.topics import TOPIC_CONFIGS
from korvet.store.keys import Namespace
from tests.api.groups import stable
from tests.api.raw import ask, created, unique
from tests.support.broker import KorvetServer, running_broker

TOPIC, BROKER, LOGGER, GROUP = 2, 4, 8, 32
SET, DELETE = range(2)
Alter = tuple[str, int, str | None]
LISTENERS_OWN = "listener.name.default.max.connections"


@pytest.fixture(scope="module")
def own() -> Iterator[KorvetServer]:
    """A broker whose cluster-wide configs may be changed."""
    settings = {"log.retention.bytes": "1000", "connections.max.idle.ms": "5000", LISTENERS_OWN: "1000"}
    with running_broker(broker=settings) as server:
        yield server


def describe(broker: KorvetServer, *resources: tuple[int, str, list[str] | None]) -> list[Any]:
    asked = [
        {"resource_type": kind, "resource_name": name, "configuration_keys": keys} for kind, name, keys in resources
    ]
    return list(ask(broker.port, "describe_configs", 4, resources=asked, include_synonyms=True)["results"])


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


def alter(broker: KorvetServer, *resources: tuple[int, str, list[Alter]]) -> list[tuple[str, str | None]]:
    asked = [
        {
            "resource_type": kind,
            "resource_name": name,
            "configs": [{"name": key, "config_operation": op, "value": value} for key, op, value in changes],
        }
        for kind, name, changes in resources
    ]
    answer = ask(broker.port, "incremental_alter_configs", 1, resources=asked)
    return [(one["error_code"], one["error_message"]) for one in answer["responses"]]


def replace(
    broker: KorvetServer, *resources: tuple[int, str, list[tuple[str, str | None]]]
) -> list[tuple[str, str | None]]:
    asked = [
        {
            "resource_type": kind,
            "resource_name": name,
            "configs": [{"name": key, "value": value} for key, value in values],
        }
        for kind, name, values in resources
    ]
    answer = ask(broker.port, "alter_configs", 2, resources=asked)
    return [(one["error_code"], one["error_message"]) for one in answer["responses"]]


OK = ("NONE", None)

# ---------------------------------------------------------------------- describing


def test_group_shows_its_own_id_and_locator(broker: KorvetServer) -> None:
    group = unique("group")
    (absent,) = describe(broker, (GROUP, group, None))
    assert (absent["error_code"], [config["name"] for config in absent["configs"]]) == ("NONE", list(GROUP_CONFIGS))
    stable(broker.port, group)
    (found,) = describe(broker, (GROUP, group, None))
    shown = {config["name"]: (config["value"], config["read_only"]) for config in found["configs"]}
    assert shown["korvet.group.locator"] == (f"default/consumer-groups/{group}", True)
    assert shown["korvet.group.id"][0].startswith("cgp_")
    refused = "INVALID_CONFIG", "Unknown group config name: korvet.group.id"
    assert alter(broker, (GROUP, group, [("korvet.group.id", SET, "x")])) == [refused]


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


def test_a_topic_has_all_of_kafkas_configs_and_korvets(broker: KorvetServer) -> None:
    (result,) = describe(broker, (TOPIC, created(broker.port), None))
    assert sorted(config["name"] for config in result["configs"]) == sorted(TOPIC_CONFIGS)


def test_what_no_broker_changes_is_refused(broker: KorvetServer) -> None:
    level: Alter = ("kafka", SET, "INFO")
    assert alter(broker, (LOGGER, "1", [level]), (TOPIC, created(broker.port), [("retention.ms", 9, "5")])) == [
        ("INVALID_REQUEST", "Korvet has no configs of resource type BROKER_LOGGER"),
        ("INVALID_REQUEST", "Unknown operations type 9"),
    ]


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
    default = (f"group.{session}", "45000", 5)
    assert shown(broker, GROUP, group, session) == ("45000", 5, [default])
    assert alter(broker, (GROUP, group, [(session, SET, "50000")])) == [("NONE", None)]
    assert shown(broker, GROUP, group, session) == ("50000", 8, [(session, "50000", 8), default])
    assert shown(broker, GROUP, unique("g"), session)[0] == "45000"
    assert alter(broker, (GROUP, group, [(session, DELETE, None)])) == [("NONE", None)]
    assert shown(broker, GROUP, group, session) == ("45000", 5, [default])


def test_replacing_configs_of_group_or_cluster_leaves_the_others_alone(own: KorvetServer) -> None:
    first, second, interval = unique("g"), unique("g"), "consumer.heartbeat.interval.ms"
    both: list[Alter] = [(interval, SET, "6000"), ("consumer.session.timeout.ms", SET, "46000")]
    assert alter(own, (GROUP, first, both), (GROUP, second, both)) == [("NONE", None)] * 2
    assert replace(own, (BROKER, "", [("num.partitions", "1")])) == [("NONE", None)]
    assert replace(own, (GROUP, first, [(interval, "7000")])) == [("NONE", None)]
    assert [shown(own, GROUP, first, name)[:2] for name, _, _ in both] == [("7000", 8), ("45000", 5)]
    assert [shown(own, GROUP, second, name)[:2] for name, _, _ in both] == [("6000", 8), ("46000", 8)]
    assert replace(own, (BROKER, "", [])) == [("NONE", None)]
