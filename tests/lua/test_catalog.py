"""The catalog's functions: topics, settings, the version that grows, producer ids."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import redis

from tests.lua.log import listening

KEYS = ("korvet:{default:catalog}:meta", "korvet:{default:catalog}:topics", "korvet:{default:catalog}:configs")
META, TOPICS, CONFIGS = KEYS
ID, OTHER_ID = "a" * 32, "b" * 32
UNKNOWN_TOPIC, TOPIC_EXISTS, INVALID_PARTITIONS = 3, 36, 37


class Catalog:
    """The functions as a front-end calls them."""

    def __init__(self, server: redis.Redis) -> None:
        self.server = server

    def call(self, function: str, *args: str | int) -> Any:
        return self.server.fcall(function, len(KEYS), *KEYS, *args)

    def create(self, name: str = "t", topic_id: str = ID, partitions: int = 3, configs: str = "{}") -> Any:
        code, text = self.call("korvet_topic_create", name, topic_id, partitions, configs)
        return code, json.loads(text or "null")

    def read(self, known: int = -1) -> tuple[int, dict[str, Any], dict[str, str]]:
        """Version, topics, cluster-wide settings."""
        code, version, _, topics, configs = self.server.fcall_ro("korvet_catalog_read", 3, *KEYS, known)
        assert code == 0
        named = dict(zip(topics[::2], topics[1::2], strict=True))
        return (
            version,
            {name.decode(): json.loads(text) for name, text in named.items()},
            {name.decode(): value.decode() for name, value in zip(configs[::2], configs[1::2], strict=True)},
        )

    def topic(self, name: str = "t") -> Any:
        return self.read()[1].get(name)

    @property
    def version(self) -> int:
        return self.read()[0]


@pytest.fixture
def catalog(server: redis.Redis) -> Catalog:
    return Catalog(server)


def test_empty_catalog_reads_as_such(catalog: Catalog) -> None:
    assert catalog.call("korvet_catalog_read", -1) == [0, 0, b"", [], []]


def test_cluster_id_is_given_once(catalog: Catalog) -> None:
    assert catalog.call("korvet_catalog_init", "first") == [0, b"first"]
    assert catalog.call("korvet_catalog_init", "second") == [0, b"first"]
    assert catalog.call("korvet_catalog_read", -1) == [0, 1, b"first", [], []]
    assert sorted(catalog.server.keys()) == sorted(key.encode() for key in KEYS)


def test_topic_is_created(catalog: Catalog, set_clock: Callable[[float], None]) -> None:
    set_clock(1_700_000_000.5)
    code, topic = catalog.create(configs='{"retention.ms": "5"}')
    assert code == 0
    assert topic == {
        "id": ID,
        "partitions": 3,
        "configs": {"retention.ms": "5"},
        "created_ms": 1_700_000_000_500,
        "deleting": False,
    }
    assert catalog.read() == (1, {"t": topic}, {})


def test_known_version_transfers_nothing(catalog: Catalog) -> None:
    catalog.create()
    assert catalog.read(1) == (1, {}, {})
    assert catalog.read(0)[1] != {}


def test_every_change_publishes_the_next_version(catalog: Catalog) -> None:
    changes: list[tuple[str, tuple[str | int, ...]]] = [
        ("korvet_catalog_init", ("cluster",)),
        ("korvet_topic_create", ("t", ID, 1, "{}")),
        ("korvet_topic_grow", ("t", ID, 2)),
        ("korvet_topic_configure", ("t", ID, '{"set": {"a": "b"}}')),
        ("korvet_catalog_configure", ('{"set": {"a": "b"}}',)),
        ("korvet_topic_delete", ("t", ID, "begin")),
        ("korvet_topic_delete", ("t", ID, "finish")),
    ]
    with listening(catalog.server, META) as next_message:
        for version, (function, args) in enumerate(changes, start=1):
            assert catalog.call(function, *args)[0] == 0
            assert next_message() == b"%d" % version
            assert catalog.version == version


def test_topic_that_exists_is_left_alone(catalog: Catalog) -> None:
    _, first = catalog.create()
    assert catalog.create(topic_id=OTHER_ID, partitions=9) == (TOPIC_EXISTS, first)
    assert catalog.read()[:2] == (1, {"t": first})


@pytest.mark.parametrize("partitions", [0, -1])
def test_topic_without_partitions_is_refused(catalog: Catalog, partitions: int) -> None:
    assert catalog.create(partitions=partitions) == (INVALID_PARTITIONS, None)
    assert catalog.server.keys() == []


def test_topic_grows_and_never_shrinks(catalog: Catalog) -> None:
    catalog.create()
    code, text = catalog.call("korvet_topic_grow", "t", ID, 5)
    assert (code, json.loads(text)["partitions"]) == (0, 5)
    for partitions in (5, 4):
        code, text = catalog.call("korvet_topic_grow", "t", ID, partitions)
        assert (code, json.loads(text)["partitions"]) == (INVALID_PARTITIONS, 5)
    assert (catalog.topic()["partitions"], catalog.version) == (5, 2)


def test_settings_of_a_topic_are_set_deleted_and_replaced(catalog: Catalog) -> None:
    catalog.create(configs='{"a": "1", "b": "2"}')
    steps = [
        ('{"set": {"c": "3"}, "delete": ["a", "x"]}', {"b": "2", "c": "3"}),
        ('{"set": {"d": "4"}, "replace": true}', {"d": "4"}),
        ('{"replace": true}', {}),
        ('{"set": {"e": "5"}}', {"e": "5"}),
    ]
    for change, expected in steps:
        code, text = catalog.call("korvet_topic_configure", "t", ID, change)
        assert (code, json.loads(text)["configs"]) == (0, expected)
        assert catalog.topic()["configs"] == expected


def test_cluster_wide_settings_are_set_deleted_and_replaced(catalog: Catalog) -> None:
    steps = [
        ('{"set": {"a": "1", "b": "2"}}', {"a": "1", "b": "2"}),
        ('{"set": {"c": "3"}, "delete": ["a", "x"]}', {"b": "2", "c": "3"}),
        ('{"set": {"d": "4"}, "replace": true}', {"d": "4"}),
        ('{"replace": true}', {}),
    ]
    for change, expected in steps:
        assert catalog.call("korvet_catalog_configure", change) == [0]
        assert catalog.read()[2] == expected


def test_settings_of_groups_outlive_the_replacement_of_the_clusters(catalog: Catalog) -> None:
    """Front-ends that know nothing of them replace all that there is."""
    assert catalog.call("korvet_catalog_configure", '{"set": {"a": "1", "group:g:b": "2", "group:h:b": "3"}}') == [0]
    assert catalog.call("korvet_catalog_configure", '{"set": {"c": "4"}, "replace": true}') == [0]
    assert catalog.call("korvet_catalog_configure", '{"delete": ["group:h:b"]}') == [0]
    assert catalog.read()[2] == {"c": "4", "group:g:b": "2"}


@pytest.mark.parametrize(
    ("function", "argument"),
    [("korvet_topic_grow", 9), ("korvet_topic_configure", '{"set": {}}'), ("korvet_topic_delete", "begin")],
)
def test_unknown_topic_and_another_id_of_it_are_refused(catalog: Catalog, function: str, argument: str | int) -> None:
    assert catalog.call(function, "t", ID, argument)[0] == UNKNOWN_TOPIC
    catalog.create()
    assert catalog.call(function, "t", OTHER_ID, argument)[0] == UNKNOWN_TOPIC
    assert catalog.version == 1


def test_deletion_marks_first_and_both_steps_may_be_repeated(catalog: Catalog) -> None:
    catalog.create()
    assert catalog.call("korvet_topic_delete", "t", ID, "finish") == [UNKNOWN_TOPIC]
    for _ in range(2):
        assert catalog.call("korvet_topic_delete", "t", ID, "begin") == [0]
        assert (catalog.topic()["deleting"], catalog.version) == (True, 2)
    assert catalog.create(topic_id=OTHER_ID)[0] == TOPIC_EXISTS
    assert catalog.call("korvet_topic_grow", "t", ID, 9)[0] == UNKNOWN_TOPIC
    assert catalog.call("korvet_topic_configure", "t", ID, "{}")[0] == UNKNOWN_TOPIC
    for _ in range(2):
        assert catalog.call("korvet_topic_delete", "t", ID, "finish") == [0]
        assert (catalog.topic(), catalog.version) == (None, 3)


def test_late_finish_leaves_the_next_topic_of_the_name_alone(catalog: Catalog) -> None:
    catalog.create()
    catalog.call("korvet_topic_delete", "t", ID, "begin")
    catalog.call("korvet_topic_delete", "t", ID, "finish")
    catalog.create(topic_id=OTHER_ID)
    assert catalog.call("korvet_topic_delete", "t", ID, "finish") == [0]
    assert catalog.topic()["id"] == OTHER_ID


def test_unknown_step_of_a_deletion_is_an_error(catalog: Catalog) -> None:
    with pytest.raises(redis.ResponseError, match="neither begin nor finish: end"):
        catalog.call("korvet_topic_delete", "t", ID, "end")


@pytest.mark.parametrize("broken", KEYS)
@pytest.mark.parametrize(
    ("function", "args"),
    [
        ("korvet_topic_create", ("u", ID, 1, "{}")),
        ("korvet_topic_grow", ("t", ID, 9)),
        ("korvet_topic_configure", ("t", ID, '{"set": {"a": "b"}}')),
        ("korvet_topic_delete", ("t", ID, "begin")),
        ("korvet_catalog_configure", ('{"set": {"a": "b"}}',)),
    ],
)
def test_key_of_the_wrong_type_is_found_before_anything_is_written(
    catalog: Catalog, broken: str, function: str, args: tuple[str | int, ...]
) -> None:
    catalog.create()
    catalog.server.delete(broken)
    catalog.server.set(broken, "text")
    before = {key: catalog.server.dump(key) for key in KEYS}
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        catalog.call(function, *args)
    assert {key: catalog.server.dump(key) for key in KEYS} == before


def test_producer_ids_rise_with_the_time_and_by_one_within_it(
    catalog: Catalog, set_clock: Callable[[float], None]
) -> None:
    ids = []
    for seconds in (1_700_000_000, 1_700_000_000, 1_700_000_001, 1_600_000_000):
        set_clock(seconds)
        ids.append(catalog.call("korvet_producer_id"))
    assert ids == [
        [0, 1_700_000_000_000_000],
        [0, 1_700_000_000_000_001],
        [0, 1_700_000_001_000_000],
        [0, 1_700_000_001_000_001],
    ]


def test_producer_ids_are_not_handed_out_twice_after_the_counter_was_lost(catalog: Catalog) -> None:
    (_, before) = catalog.call("korvet_producer_id")
    catalog.server.flushall()
    (_, after) = catalog.call("korvet_producer_id")
    assert after > before


def test_full_server_refuses_new_topics_but_lets_them_be_read_and_deleted(catalog: Catalog) -> None:
    catalog.create()
    catalog.server.config_set("maxmemory", 1)
    with pytest.raises(redis.exceptions.OutOfMemoryError):
        catalog.create("u")
    assert catalog.read()[1].keys() == {"t"}
    assert catalog.call("korvet_topic_delete", "t", ID, "begin") == [0]
    assert catalog.call("korvet_topic_delete", "t", ID, "finish") == [0]
