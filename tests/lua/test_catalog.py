"""The catalog's functions: topics, settings, the growing version, producer ids."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import redis

from tests.lua.log import listening

KEYS = ("korvet:{default:@catalog}:meta", "korvet:{default:@catalog}:topics", "korvet:{default:@catalog}:configs")
META, TOPICS, CONFIGS = KEYS
ID, OTHER_ID = "a" * 32, "b" * 32
UNKNOWN_TOPIC, TOPIC_EXISTS, INVALID_PARTITIONS = 3, 36, 37
RETRY = -5


INVALID_CONFIG, POLICY_VIOLATION = 40, 44


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

    def page(self, cursor: str | bytes) -> tuple[int, dict[str, Any], list[bytes], bytes]:
        """Code, topics, settings and the next cursor."""
        code, _, _, topics, configs, following = self.server.fcall_ro("korvet_catalog_read", 3, *KEYS, -1, cursor)
        named = dict(zip(topics[::2], topics[1::2], strict=True))
        return code, {name.decode(): json.loads(text) for name, text in named.items()}, configs, following

    def create_many(self, count: int) -> set[str]:
        with self.server.pipeline(transaction=False) as calls:
            for number in range(count):
                calls.fcall("korvet_topic_create", len(KEYS), *KEYS, f"t{number}", ID, 1, "{}")
            calls.execute()
        return {f"t{number}" for number in range(count)}


@pytest.fixture
def catalog(server: redis.Redis) -> Catalog:
    return Catalog(server)


def test_empty_catalog_has_no_topics_and_no_settings(catalog: Catalog) -> None:
    assert catalog.call("korvet_catalog_read", -1) == [0, 0, b"", [], []]


def test_catalog_keeps_the_first_cluster_id(catalog: Catalog) -> None:
    assert catalog.call("korvet_catalog_init", "first") == [0, b"first"]
    version = catalog.version
    assert catalog.call("korvet_catalog_init", "second") == [0, b"first"]
    assert catalog.call("korvet_catalog_read", -1) == [0, version, b"first", [], []]
    assert sorted(catalog.server.keys()) == sorted(key.encode() for key in KEYS)


def test_catalog_lists_a_created_topic(catalog: Catalog, set_clock: Callable[[float], None]) -> None:
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
    assert catalog.read() == (1_700_000_000_500_000, {"t": topic}, {})


def test_reader_of_the_known_version_gets_the_version_alone(catalog: Catalog) -> None:
    catalog.create()
    version = catalog.version
    assert catalog.read(version) == (version, {}, {})
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
        versions = []
        for function, args in changes:
            assert catalog.call(function, *args)[0] == 0
            versions.append(int(next_message()))
            assert catalog.version == versions[-1]
    assert versions == list(range(versions[0], versions[0] + len(changes)))


def test_version_never_comes_again_even_if_the_catalog_was_deleted(catalog: Catalog) -> None:
    seen = []
    for _ in range(3):
        for name in "ab":
            catalog.create(name)
            seen.append(catalog.version)
        catalog.server.flushall()
    assert len(set(seen)) == len(seen) and seen == sorted(seen)


def test_existing_topic_is_not_created_again(catalog: Catalog) -> None:
    _, first = catalog.create()
    before = catalog.read()
    assert catalog.create(topic_id=OTHER_ID, partitions=9) == (TOPIC_EXISTS, first)
    assert catalog.read() == before


@pytest.mark.parametrize("partitions", [0, -1])
def test_topic_without_partitions_is_refused(catalog: Catalog, partitions: int) -> None:
    assert catalog.create(partitions=partitions) == (INVALID_PARTITIONS, None)
    assert catalog.server.keys() == []


def test_topic_grows_and_never_shrinks(catalog: Catalog) -> None:
    catalog.create()
    version = catalog.version
    code, text = catalog.call("korvet_topic_grow", "t", ID, 5)
    assert (code, json.loads(text)["partitions"]) == (0, 5)
    for partitions in (5, 4):
        code, text = catalog.call("korvet_topic_grow", "t", ID, partitions)
        assert (code, json.loads(text)["partitions"]) == (INVALID_PARTITIONS, 5)
    assert (catalog.topic()["partitions"], catalog.version) == (5, version + 1)


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


@pytest.mark.parametrize("kind", ["group", "client-metrics"])
def test_settings_of_others_survive_a_replacement_of_the_clusters(catalog: Catalog, kind: str) -> None:
    """Front-ends of a former version do not know them, and replace all other settings."""
    change = f'{{"set": {{"a": "1", "{kind}:g:b": "2", "{kind}:h:b": "3"}}}}'
    assert catalog.call("korvet_catalog_configure", change) == [0]
    assert catalog.call("korvet_catalog_configure", '{"set": {"c": "4"}, "replace": true}') == [0]
    assert catalog.call("korvet_catalog_configure", f'{{"delete": ["{kind}:h:b"]}}') == [0]
    assert catalog.read()[2] == {"c": "4", f"{kind}:g:b": "2"}


def test_no_more_resources_of_a_kind_than_a_bound_have_settings(catalog: Catalog) -> None:
    def configure(change: str, *step: str) -> object:
        return catalog.call("korvet_catalog_configure", change, 2, *step)

    for group in "gh":
        assert configure(f'{{"set": {{"group:{group}:a": "1", "group:{group}:b": "2"}}}}') == [0]
    before = catalog.read()
    for change in ('{"set": {"group:i:a": "1"}}', '{"set": {"group:i:a": "1"}, "delete": ["group:g:a"]}'):
        for step in ((), ("check",)):
            assert configure(change, *step) == [POLICY_VIOLATION]
    assert configure('{"set": {"group:g:c": "3"}}', "check") == [0]
    assert catalog.read() == before
    # Those beyond a bound that was higher may change.
    assert catalog.call("korvet_catalog_configure", '{"set": {"group:g:c": "3"}}', 1) == [0]
    assert configure('{"set": {"client-metrics:i:a": "1"}}') == [0]
    assert configure('{"set": {"group:i:a": "1"}, "delete": ["group:h:a", "group:h:b"]}') == [0]


@pytest.mark.parametrize(
    ("function", "argument"),
    [("korvet_topic_grow", 9), ("korvet_topic_configure", '{"set": {}}'), ("korvet_topic_delete", "begin")],
)
def test_unknown_topic_or_topic_id_is_refused(catalog: Catalog, function: str, argument: str | int) -> None:
    assert catalog.call(function, "t", ID, argument)[0] == UNKNOWN_TOPIC
    catalog.create()
    version = catalog.version
    assert catalog.call(function, "t", OTHER_ID, argument)[0] == UNKNOWN_TOPIC
    assert catalog.version == version


def test_deletion_marks_first_and_repeats_both_steps(catalog: Catalog) -> None:
    catalog.create()
    version = catalog.version
    assert catalog.call("korvet_topic_delete", "t", ID, "finish") == [UNKNOWN_TOPIC]
    for _ in range(2):
        assert catalog.call("korvet_topic_delete", "t", ID, "begin") == [0]
        assert (catalog.topic()["deleting"], catalog.version) == (True, version + 1)
    assert catalog.create(topic_id=OTHER_ID)[0] == TOPIC_EXISTS
    assert catalog.call("korvet_topic_grow", "t", ID, 9)[0] == UNKNOWN_TOPIC
    assert catalog.call("korvet_topic_configure", "t", ID, "{}")[0] == UNKNOWN_TOPIC
    for _ in range(2):
        assert catalog.call("korvet_topic_delete", "t", ID, "finish") == [0]
        assert (catalog.topic(), catalog.version) == (None, version + 2)


def test_late_finish_keeps_the_next_topic_of_that_name(catalog: Catalog) -> None:
    catalog.create()
    catalog.call("korvet_topic_delete", "t", ID, "begin")
    catalog.call("korvet_topic_delete", "t", ID, "finish")
    catalog.create(topic_id=OTHER_ID)
    assert catalog.call("korvet_topic_delete", "t", ID, "finish") == [0]
    assert catalog.topic()["id"] == OTHER_ID


def test_unknown_step_of_a_deletion_is_an_error(catalog: Catalog) -> None:
    with pytest.raises(redis.ResponseError, match=r"step must be one of begin\|finish\|clear, not end"):
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
def test_key_of_the_wrong_type_is_found_before_the_first_write(
    catalog: Catalog, broken: str, function: str, args: tuple[str | int, ...]
) -> None:
    catalog.create()
    catalog.server.delete(broken)
    catalog.server.set(broken, "text")
    before = {key: catalog.server.dump(key) for key in KEYS}
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        catalog.call(function, *args)
    assert {key: catalog.server.dump(key) for key in KEYS} == before


def test_producer_ids_rise_with_the_time_or_else_by_one(catalog: Catalog, set_clock: Callable[[float], None]) -> None:
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


def test_catalog_repeats_no_producer_id_after_the_counter_was_lost(catalog: Catalog) -> None:
    (_, before) = catalog.call("korvet_producer_id")
    catalog.server.flushall()
    (_, after) = catalog.call("korvet_producer_id")
    assert after > before


def test_full_server_creates_no_topic_but_reads_and_deletes_topics(catalog: Catalog) -> None:
    catalog.create()
    catalog.server.config_set("maxmemory", 1)
    with pytest.raises(redis.exceptions.OutOfMemoryError):
        catalog.create("u")
    assert catalog.read()[1].keys() == {"t"}
    assert catalog.call("korvet_topic_delete", "t", ID, "begin") == [0]
    assert catalog.call("korvet_topic_delete", "t", ID, "finish") == [0]


def test_one_page_holds_few_topics(catalog: Catalog) -> None:
    catalog.call("korvet_catalog_configure", json.dumps({"set": {"retention.ms": "5"}}))
    catalog.create()
    code, topics, configs, following = catalog.page("0")
    assert (code, [*topics], configs, following) == (0, ["t"], [b"retention.ms", b"5"], b"0")
    version = catalog.version
    assert catalog.server.fcall_ro("korvet_catalog_read", 3, *KEYS, version, "0")[3:] == [[], [], b"0"]


def test_each_page_holds_some_topics_and_all_pages_hold_all(catalog: Catalog) -> None:
    names = catalog.create_many(3000)
    catalog.call("korvet_catalog_configure", json.dumps({"set": {"retention.ms": "5"}}))
    code, found, configs, cursor = catalog.page("0")
    assert (code, configs) == (0, [b"retention.ms", b"5"])
    while cursor != b"0":
        code, page, configs, cursor = catalog.page(cursor)
        assert (code, configs) == (0, [])
        assert len(page) < 1000
        found |= page
    assert {*found} == names


def test_pages_hold_each_lasting_topic_while_others_come_and_go(catalog: Catalog) -> None:
    names = sorted(catalog.create_many(2000))
    found: dict[str, Any] = {}
    cursor: str | bytes = "0"
    while cursor != b"0":
        _, page, _, cursor = catalog.page(cursor)
        found |= page
        for _ in range(200):
            gone = names.pop()
            catalog.call("korvet_topic_delete", gone, ID, "begin")
            catalog.call("korvet_topic_delete", gone, ID, "finish")
            catalog.create(f"new-{gone}")
        catalog.call("korvet_topic_grow", names[0], ID, 1 + catalog.topic(names[0])["partitions"])
    assert found.keys() >= {*names}


def test_cursor_of_another_server_is_refused(catalog: Catalog) -> None:
    catalog.create_many(2000)
    _, _, _, cursor = catalog.page("0")
    assert catalog.page(b"0" * 40 + cursor[40:]) == (RETRY, {}, [], b"0")


# ---------------------------------------------------------------------- topics in the tier

TIERED = '{"remote.storage.enable": " True "}'


def test_tier_of_a_namespace_is_another_one_only_while_no_topic_is_there(catalog: Catalog) -> None:
    def name(*args: str) -> Any:
        return catalog.call("korvet_catalog_tier", *args)

    assert name("other", "one") == [0, b""]
    for _ in range(2):
        assert name("", "one") == [0, b"one"]
    assert (name("", "two"), name("one", "two"), name("one", "three")) == ([0, b"one"], [0, b"two"], [0, b"two"])
    with pytest.raises(redis.ResponseError, match="an id of 1 to 64 bytes"):
        name("two", "x" * 65)
    catalog.create("a")
    assert name("two", "three") == [0, b"three"]
    catalog.create("b", configs=TIERED)
    assert name("three", "four") == [0, b"three"]
    catalog.call("korvet_topic_delete", "b", ID, "begin")
    assert name("three", "four") == [0, b"three"]
    catalog.call("korvet_topic_delete", "b", ID, "finish")
    assert name("three", "four") == [0, b"four"]


@pytest.mark.parametrize(
    "change",
    ['{"delete": ["remote.storage.enable"]}', '{"set": {"remote.storage.enable": "false"}}', '{"replace": true}'],
)
def test_topic_never_leaves_the_tier(catalog: Catalog, change: str) -> None:
    """An older front-end knows nothing of the tier, and may replace all settings."""
    catalog.create(configs=TIERED)
    version = catalog.version
    assert catalog.call("korvet_topic_configure", "t", ID, change) == [INVALID_CONFIG, b""]
    assert (catalog.version, catalog.topic()["configs"]) == (version, json.loads(TIERED))
    assert catalog.call("korvet_topic_configure", "t", ID, '{"set": {"retention.ms": "5"}}')[0] == 0


def test_deleted_topic_of_the_tier_is_noted_until_its_objects_are_gone(
    catalog: Catalog, set_clock: Callable[[float], None]
) -> None:
    def noted() -> Any:
        code, cursor, flat = catalog.server.fcall_ro("korvet_topic_deleted", 1, KEYS[0], "0")
        assert (code, cursor) == (0, b"0")
        return dict(zip(flat[::2], flat[1::2], strict=True))

    set_clock(1000)
    for topic_id, configs in ((ID, TIERED), (OTHER_ID, "{}")):
        catalog.create(topic_id=topic_id, configs=configs)
        for step in ("begin", "finish", "finish"):
            assert catalog.call("korvet_topic_delete", "t", topic_id, step) == [0]
    assert noted() == {f"deleted:{ID}".encode(): b"t 3 1000000"}
    catalog.create()
    for _ in range(2):
        assert catalog.call("korvet_topic_delete", "t", ID, "clear") == [0]
    assert (noted(), catalog.topic()["id"]) == ({}, ID)
