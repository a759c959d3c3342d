"""Topics of records: Kafka clients use them as any other topic, and Redis users read and write them."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
from crc32c import crc32c
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from korvet.wire.batch import CONTROL, CRC_FROM, LENGTH_FROM
from tests.api.data import connected, fetch, fetch_request, now_ms, partitions_of, produce, wanted
from tests.api.raw import ask, create_topics, created
from tests.api.transactions import Producer, producer
from tests.support.broker import KorvetServer, running_broker
from tests.support.redis import running_server
from tests.wire.whole import HEADERS, TEXTS, VALUES, Placed, Whole, built, read

WITHIN_S = 30.0
TRANSACTIONAL = 0x10
KINDS: tuple[dict[str, str], ...] = (
    {"korvet_storage": "batch"},
    {"korvet_storage": "record"},
    {"korvet_storage": "record", "korvet_value_format": "json"},
)


def keys(topic: str) -> list[str]:
    return [f"korvet:{{default:{topic}:0}}:{name}" for name in ("log", "meta", "producers")]


def inlet(topic: str) -> str:
    return f"korvet:{{default:{topic}:0}}:in"


def soon(condition: Callable[[], Any]) -> Any:
    """The first answer that is not false."""
    deadline = time.monotonic() + WITHIN_S
    while time.monotonic() < deadline:
        if found := condition():
            return found
        time.sleep(0.02)
    raise AssertionError("it did not come to that")


def consumed(port: int, topic: str, offset: int = 0, *, version: int = 12, **values: Any) -> list[Placed]:
    """The records that a consumer at an offset gets; control records without their time."""
    (part,) = fetch(port, topic, wanted(offset), version=version, **values)
    assert part["error_code"] == "NONE"
    return [
        one._replace(record=one.record._replace(timestamp=0)) if one.attributes & CONTROL else one
        for one in read(part["records"] or b"")
        if one.offset >= offset
    ]


def sent(port: int, topic: str, *records: Whole, **values: Any) -> None:
    assert produce(port, topic, built(*records, **values)[1])["error_code"] == "NONE"


def entries(client: redis.Redis, topic: str) -> list[tuple[bytes, dict[bytes, bytes]]]:
    """The entries that an XREAD from the beginning shows."""
    found: Any = client.xread({keys(topic)[0]: "0"})
    ((_, own),) = found
    return list(own)


def rules(client: redis.Redis, topic: str) -> bytes | None:
    found: Any = client.hget(keys(topic)[1], "records")
    return None if found is None else bytes(found)


def append(client: redis.Redis, topic: str, *fields: str | bytes) -> Any:
    return client.fcall("korvet_record_append", 3, *keys(topic), *fields)


@pytest.fixture(scope="module")
def client(broker: KorvetServer) -> Iterator[redis.Redis]:
    with broker.redis() as client:
        yield client


# ---------------------------------------------------------------------- Kafka clients

RECORDS = st.lists(
    st.builds(Whole, TEXTS, VALUES, HEADERS, st.integers(-1, 5000).map(lambda ago: ago if ago < 0 else now_ms() - ago)),
    min_size=1,
    max_size=5,
)
STEPS = st.lists(
    st.tuples(RECORDS, st.integers(0, 4), st.sampled_from(["plain", "idempotent", "transactional", "commit", "abort"])),
    min_size=1,
    max_size=8,
)


class Writer:
    """A producer that sends the same records to several topics."""

    def __init__(self, port: int, topics: list[str]) -> None:
        self.port = port
        self.topics = topics
        self.plain = producer(port)
        self.plain.transactional_id = ""
        self.transactional: Producer = producer(port)
        self.is_open = False

    def step(self, records: list[Whole], codec: int, kind: str) -> None:
        if kind in ("commit", "abort"):
            if self.is_open:
                assert self.transactional.end(commit=kind == "commit") == "NONE"
            self.is_open = False
            return
        for topic in self.topics:
            self._send(topic, records, codec, kind)
        self.is_open = self.is_open or kind == "transactional"

    def _send(self, topic: str, records: list[Whole], codec: int, kind: str) -> None:
        if kind == "plain":
            sent(self.port, topic, *records, codec=codec)
            return
        own = self.transactional if kind == "transactional" else self.plain
        sequence = own.sequences.get((topic, 0), 0)
        own.sequences[topic, 0] = sequence + len(records)
        data = built(
            *records, codec=codec, producer=(own.producer_id, own.epoch, sequence),
            attributes=TRANSACTIONAL if kind == "transactional" else 0,
        )[1]  # fmt: skip
        name = own.transactional_id or None
        for _ in range(2):  # The second one is a duplicate.
            assert produce(self.port, topic, data, transactional_id=name)["error_code"] == "NONE"


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(STEPS, st.integers(0, 20))
def test_records_come_back_as_those_of_a_topic_of_batches(
    broker: KorvetServer, steps: list[tuple[list[Whole], int, str]], offset: int
) -> None:
    topics = [created(broker.port, None, 1, **configs) for configs in KINDS]
    writer = Writer(broker.port, topics)
    for step in steps:
        writer.step(*step)
    ends = [len(consumed(broker.port, topic)) for topic in topics]
    assert ends[1:] == ends[:-1]
    for level in (0, 1):
        at = min(offset, ends[0])
        # This front-end has the newest records in memory; the other one reads them from Redis.
        batches, *others = [consumed(broker.port, topic, at, isolation_level=level) for topic in topics]
        assert others == [batches, batches]
        (part, *parts) = [fetch(broker.port, topic, wanted(at), isolation_level=level)[0] for topic in topics]
        names = ("aborted_transactions", "high_watermark", "last_stable_offset", "log_start_offset")
        assert all([other[name] for name in names] == [part[name] for name in names] for other in parts)


def test_a_record_in_the_midst_is_found_by_offset_time_and_deletion(broker: KorvetServer) -> None:
    topic, now = created(broker.port, korvet_storage="record"), now_ms()
    records = [Whole(b"%d" % number, b"v" * 100, timestamp=now + number) for number in range(300)]
    sent(broker.port, topic, *records, codec=1)
    for version in (4, 12):
        found = consumed(broker.port, topic, 123, version=version)
        assert [(one.offset, one.record) for one in found] == list(enumerate(records))[123:]
    (part,) = fetch(broker.port, topic, wanted(5, max_bytes=1000))
    assert [one.offset for one in read(part["records"])] == list(range(5, 10))
    assert len(part["records"]) < 1000
    parts = [{"partition_index": 0, "current_leader_epoch": -1, "timestamp": now + 222}]
    asked = ask(broker.port, "list_offsets", 7, isolation_level=0, topics=[{"name": topic, "partitions": parts}])
    assert [(one["offset"], one["timestamp"]) for one in asked["topics"][0]["partitions"]] == [(222, now + 222)]
    trimmed = [{"name": topic, "partitions": [{"partition_index": 0, "offset": 250}]}]
    answer = ask(broker.port, "delete_records", 2, topics=trimmed, timeout=5000)
    assert answer["topics"][0]["partitions"][0]["low_watermark"] == 250
    assert [one.offset for one in consumed(broker.port, topic, 250)] == list(range(250, 300))
    (described,) = ask(broker.port, "describe_log_dirs", 4, topics=[{"topic": topic, "partitions": [0]}])["results"]
    assert described["topics"][0]["partitions"][0]["partition_size"] == sum(len(built(one)[1]) for one in records[250:])


def test_batches_that_cannot_be_stored_by_record_are_refused(broker: KorvetServer, client: redis.Redis) -> None:
    small = created(broker.port, korvet_storage="record", max_message_bytes="2000")
    large = built(*[Whole(value=b"v" * 100)] * 30, codec=1)[1]
    assert len(large) < 2000
    assert produce(broker.port, small, large)["error_code"] == "MESSAGE_TOO_LARGE"
    topic = created(broker.port, korvet_storage="record")
    assert produce(broker.port, topic, built(*[Whole()] * 10_001)[1])["error_code"] == "MESSAGE_TOO_LARGE"
    answer = produce(broker.port, topic, cut(built(Whole(), Whole())[1]))
    assert (answer["error_code"], answer["log_start_offset"]) == ("INVALID_RECORD", 0)
    late = built(Whole(timestamp=now_ms()), Whole(timestamp=now_ms() + 10_000_000), Whole(timestamp=now_ms()))[1]
    assert produce(broker.port, topic, late)["error_code"] == "INVALID_TIMESTAMP"
    assert client.xlen(keys(topic)[0]) == 0
    sent(broker.port, topic, *[Whole(None, b"")] * 10_000)
    assert client.xlen(keys(topic)[0]) == 10_000
    for name, value in (("korvet.storage", "records"), ("korvet.value.format", "xml")):
        (result,) = create_topics(broker.port, {"name": "wrong", "configs": [{"name": name, "value": value}]})
        assert result["error_code"] == "INVALID_CONFIG"


def cut(data: bytes) -> bytes:
    """A batch without its last byte, whose length and checksum fit."""
    shorter = bytearray(data[:-1])
    shorter[8:12] = struct.pack(">i", len(shorter) - LENGTH_FROM)
    shorter[17:21] = struct.pack(">I", crc32c(bytes(shorter[CRC_FROM:])))
    return bytes(shorter)


# ---------------------------------------------------------------------- Redis users


def alter(port: int, topic: str, **configs: str) -> None:
    """Set configs, or delete the empty ones."""
    changes = [
        {"name": name.replace("_", "."), "config_operation": 0 if value else 1, "value": value or None}
        for name, value in configs.items()
    ]
    resources = [{"resource_type": 2, "resource_name": topic, "configs": changes}]
    (answer,) = ask(port, "incremental_alter_configs", 1, resources=resources, validate_only=False)["responses"]
    assert answer["error_code"] == "NONE", answer


def test_redis_users_and_kafka_clients_read_each_others_records(broker: KorvetServer, client: redis.Redis) -> None:
    topic = created(broker.port, korvet_storage="record", korvet_value_format="json")
    sent(broker.port, topic, Whole(b"k", b'{"city":"Bonn","size":{"km":2}}', (("trace", b"7"),), now_ms()))
    ((name, fields),) = entries(client, topic)
    index, record = fields.pop(b"i"), fields.pop(b"r")
    assert (name, index.split()[0], record.split()[:4]) == (b"1-0", b"1", [b"0", b"-1", b"-1", b"-1"])
    assert fields == {b"key": b"k", b"value.city": b"Bonn", b"value.size": b'{"km":2}', b"header.trace": b"7"}
    with connected(broker.port) as waiting:
        waiting.send("fetch", 12, **fetch_request(topic, wanted(1), max_wait=20_000))
        assert append(client, topic, "key", "K", "value", '{"a":1}', "header.h", "x") == 1
        (part,) = partitions_of(waiting.receive())
        (found,) = read(part["records"])
        assert found.record._replace(timestamp=0) == Whole(b"K", b'{"a":1}', (("h", b"x"),), 0)
        waiting.send("fetch", 12, **fetch_request(topic, wanted(2), max_wait=20_000))
        client.xadd(inlet(topic), {"value": "moved"})
        (part,) = partitions_of(waiting.receive())
        assert [(one.offset, one.record.key, one.record.value) for one in read(part["records"])] == [
            (2, None, b"moved")
        ]
    with pytest.raises(redis.ResponseError, match="unknown field val"):
        append(client, topic, "val", "x")


def test_storage_changes_at_any_time(broker: KorvetServer, client: redis.Redis) -> None:
    topic, everything = created(broker.port), [Whole(b"%d" % offset, timestamp=now_ms()) for offset in range(9)]
    with pytest.raises(redis.ResponseError, match="not a partition of a topic"):
        append(client, topic, "value", "x")
    sent(broker.port, topic, *everything[:2])
    alter(broker.port, topic, korvet_storage="record")
    sent(broker.port, topic, *everything[2:4])
    soon(lambda: rules(client, topic))
    alter(broker.port, topic, korvet_value_schema='{"type": "object"}')
    soon(lambda: rules(client, topic) == b"1048588 0 0 1")
    with pytest.raises(redis.ResponseError, match="schema"):
        append(client, topic, "value", "{}")
    answer = produce(broker.port, topic, built(Whole(value=b"[]"))[1])
    assert answer["error_code"] == "INVALID_RECORD"
    alter(broker.port, topic, korvet_value_schema="", message_timestamp_type="LogAppendTime", max_message_bytes="999")
    soon(lambda: rules(client, topic) == b"999 1 0 0")
    before = now_ms() - 1000
    assert append(client, topic, "key", "4", "value", "value") == 4
    sent(broker.port, topic, *[one._replace(timestamp=5) for one in everything[5:7]])
    alter(broker.port, topic, korvet_storage="", message_timestamp_type="")
    soon(lambda: not client.hexists(keys(topic)[1], "records"))
    sent(broker.port, topic, *everything[7:])
    assert [len(fields) for _, fields in entries(client, topic)] == [2, 4, 4, 4, 4, 4, 2]
    found = consumed(broker.port, topic)
    assert [(one.offset, one.record.key) for one in found] == [(offset, b"%d" % offset) for offset in range(9)]
    assert [one.attributes for one in found] == [0, 0, 0, 0, 8, 8, 8, 0, 0]
    assert all(one.record.timestamp >= before for one in found[4:7])


def test_inlets_wait_for_front_ends_and_are_moved_once() -> None:
    with (
        running_server("valkey") as server,
        server.client() as client,
        running_broker(redis_url=server.url) as first,
        running_broker(redis_url=server.url) as second,
    ):
        topic, other = created(first.port, korvet_storage="record"), created(first.port)
        for number in range(300):
            client.xadd(inlet(topic), {"key": str(number)})
        soon(lambda: client.xlen(keys(topic)[0]))
        first.kill()
        for number in range(300, 400):
            client.xadd(inlet(topic), {"key": str(number)})
        soon(lambda: client.xlen(keys(topic)[0]) == 400)
        second.kill()
        # As if the front-ends that changed the topics had died before they changed the partitions.
        client.hset(keys(other)[1], "records", "1000 0 0 0")
        client.hset(keys(topic)[1], "records", "1000 0 0 1")
        client.xadd(inlet(topic), {"key": "400"})
        second.start()
        soon(lambda: client.xlen(keys(topic)[0]) == 401)
        soon(lambda: not client.hexists(keys(other)[1], "records"))
        found = consumed(second.port, topic)
        assert [(one.offset, one.record.key) for one in found] == [(offset, b"%d" % offset) for offset in range(401)]
        assert client.xlen(inlet(topic)) == client.xlen(f"{inlet(topic)}:refused") == 0
