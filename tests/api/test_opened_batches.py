"""Batches that a front-end opens before it stores them: it serves others meanwhile, and bounds the memory."""

from __future__ import annotations

import json
import select
import struct
import threading
from types import SimpleNamespace
from typing import Any, cast

import anyio
import anyio.to_thread
import crc32c
import pytest

from korvet.api.shared.config_resources import topic_misconfigured
from korvet.api.shared.context import Context
from korvet.codes import INVALID_RECORD
from korvet.configs.topics import VALUE_SCHEMA
from korvet.configs.value_schema import ValueSchema
from korvet.store.keys import Namespace
from korvet.store.log.appending import opened
from korvet.store.log.log import Log
from korvet.store.log.partitions.shared import Shared
from korvet.store.log.state.partition import Partition
from korvet.store.topics import create_topic
from korvet.wire.batch import GZIP, LZ4, SNAPPY, ZSTD, Refusal
from korvet.wire.compacted import MOST_RECORDS
from korvet.wire.compress import compressed
from tests.api.data import connected, fetch, fetch_request, offsets, produce, produce_request, wanted
from tests.api.raw import created, unique
from tests.oracle.batches import varint
from tests.store.keyed import keyed
from tests.store.logs import Front, front, header
from tests.support.broker import KorvetServer
from tests.support.memory import MEGABYTE, collector_stopped, traced_memory
from tests.support.redis import Server

SCHEMA = json.dumps({"type": "object", "properties": {"id": {"type": "integer"}}})
COUNT = 50_000
ATTEMPTS = 30
"""The time allows for a test process that is held up."""


def batch(count: int, key: bytes | None, value: bytes, last_key: bytes | None = b"k") -> bytes:
    """Many records in few bytes."""
    records = bytearray()
    for index in range(count):
        name = last_key if index == count - 1 else key
        parts = (varint(-1) if part is None else varint(len(part)) + part for part in (name, value))
        body = b"\0\0" + varint(index) + b"".join(parts) + b"\0"
        records += varint(len(body)) + body
    return sealed_batch(count, ZSTD, bytes(records))


def sealed_batch(count: int, codec: int, plain: bytes) -> bytes:
    covered = struct.pack(">hiqqqhii", codec, count - 1, -1, -1, -1, -1, -1, count) + compressed(codec, plain)
    return struct.pack(">qiibI", 0, 9 + len(covered), -1, 2, crc32c.crc32c(covered)) + covered


@pytest.mark.parametrize(
    ("configs", "count", "value", "last_key", "code"),
    [
        ({"cleanup_policy": "compact"}, COUNT, b"", None, "INVALID_RECORD"),
        ({"korvet_value_schema": SCHEMA}, COUNT // 4, b'{"id": 1}', b"k", "NONE"),
        ({"compression_type": "gzip", "compression_gzip_level": "9"}, COUNT, b"{}" * 100, b"k", "NONE"),
    ],
    ids=["compacted", "schema", "gzip"],
)
def test_other_clients_are_served_while_a_long_batch_is_opened(
    broker: KorvetServer, configs: dict[str, Any], count: int, value: bytes, last_key: bytes | None, code: str
) -> None:
    data = batch(count, b"k", value, last_key)
    topic, other = created(broker.port, **configs), created(broker.port)
    request = fetch_request(other, wanted(0))
    were_served = False
    with connected(broker.port) as slow, connected(broker.port) as quick:
        quick.ask("fetch", 12, **request)
        for _ in range(ATTEMPTS):
            slow.send("produce", 12, **produce_request(topic, data))
            # A later request waits, and is appended after it.
            slow.send("produce", 12, **produce_request(other, batch(1, b"k", b"{}")))
            for _ in range(3):
                quick.ask("fetch", 12, **request)
            were_served = were_served or not select.select([slow.socket], [], [], 0)[0]
            (answer, second) = (slow.receive()["responses"][0]["partition_responses"][0] for _ in range(2))
            assert (answer["error_code"], second["error_code"]) == (code, "NONE")
            if code != "NONE":
                assert [error["batch_index"] for error in answer["record_errors"]] == [count - 1]
            if were_served:
                return
    raise AssertionError("nobody else was served meanwhile")


def test_only_a_few_record_errors_are_named(broker: KorvetServer) -> None:
    topic = created(broker.port, cleanup_policy="compact")
    answer = produce(broker.port, topic, batch(5000, None, b""))
    assert answer["error_code"] == "INVALID_RECORD"
    assert answer["error_message"].startswith("One or more records have been rejected due to 4999 record errors in")
    assert [error["batch_index"] for error in answer["record_errors"]] == list(range(100))
    (read,) = fetch(broker.port, topic, wanted(0))
    assert offsets(read) == []


def test_compacted_topic_takes_no_batch_of_too_many_records(broker: KorvetServer) -> None:
    """Some kilobytes that would take hundreds of megabytes while they are open, whenever the topic is compacted."""
    topic = created(broker.port, cleanup_policy="compact")
    data = batch(MOST_RECORDS + 1, b"k", b"")
    answer = produce(broker.port, topic, data)
    assert answer["error_code"] == "INVALID_RECORD"
    assert answer["error_message"].startswith(f"a batch of {MOST_RECORDS + 1} records; ")


async def endless(one: Front) -> Partition:
    """A partition of a topic whose schema holds ten bytes against 2^60 of its parts."""
    parts: dict[str, Any] = {f"p{turn}": {"allOf": [{"$ref": f"#/$defs/p{turn + 1}"}] * 2} for turn in range(60)}
    schema = {"$defs": {**parts, "p60": {}}, "properties": {"x": {"$ref": "#/$defs/p0"}}}
    _, topic = await create_topic(one.catalog, one.log, unique(), 1, {"korvet.value.schema": json.dumps(schema)})
    assert topic is not None
    return one.log.partition(topic, 0)


@pytest.mark.anyio
async def test_judgement_ends_at_once_when_its_client_is_gone(
    redis_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A drain that is over would wait ten seconds for its thread, and a client that left would keep a core busy."""
    judge, begun, ended = opened._refusal_in_time, threading.Event(), threading.Event()

    def judging(*args: Any) -> Any:
        begun.set()
        try:
            return judge(*args)
        finally:
            ended.set()

    monkeypatch.setattr(opened, "MOST_CPU_S", 60.0)
    monkeypatch.setattr(opened, "MOST_KEYWORDS_OF_BATCH", float("inf"))
    monkeypatch.setattr(opened, "_refusal_in_time", judging)
    async with front(redis_server.url) as one:
        partition, data = await endless(one), keyed((b"k", b'{"x": 1}'))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(opened.refused_for_values, one.log, partition, header(data), data)
            while not begun.is_set():
                await anyio.sleep(0.01)
            tasks.cancel_scope.cancel()
        assert ended.wait(10)


@pytest.mark.anyio
async def test_costly_value_is_judged_beside_the_loop_and_ends(
    redis_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opened, "MOST_KEYWORDS_OF_BATCH", 10_000)
    async with front(redis_server.url) as one:
        partition = await endless(one)
        for value, is_too_much in ((b"{}", False), (b'{"x": 1}', True), (b"{}", False)):
            data = keyed((b"k", value))
            refused = await opened.refused_for_values(one.log, partition, header(data), data)
            message = "" if refused is None else refused.message or ""
            assert ("takes more than 10 s, or too many keywords" in message) is is_too_much


@pytest.mark.anyio
@pytest.mark.parametrize("codec", [GZIP, SNAPPY, LZ4, ZSTD])
@pytest.mark.parametrize(
    "configs",
    [
        {"cleanup.policy": "compact"},
        {"korvet.value.schema": SCHEMA},
        {"compression.type": "uncompressed"},
        {"korvet.storage": "record"},
    ],
    ids=["compacted", "schema", "uncompressed", "record"],
)
async def test_refused_bomb_leaves_nothing_in_memory_before_the_collector_comes(
    redis_server: Server, configs: dict[str, str], codec: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("korvet.wire.records.MOST_BYTES", MEGABYTE)
    data = sealed_batch(1, codec, bytes(2 * MEGABYTE))
    async with front(redis_server.url) as one:
        _, topic = await create_topic(one.catalog, one.log, unique(), 1, configs)
        assert topic is not None
        partition = one.log.partition(topic, 0)
        await opened.opened_for(one.log, partition, header(data), data)
        with collector_stopped(), traced_memory() as held_bytes:
            for _ in range(5):
                assert isinstance(await opened.opened_for(one.log, partition, header(data), data), Refusal)
            # A thread itself lets go a moment later.
            await anyio.to_thread.run_sync(int)
            assert held_bytes() < MEGABYTE


@pytest.fixture
def made_in(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The threads that made schemas, which takes up to half a second."""
    threads: list[int] = []
    make = ValueSchema.__init__

    def noted(self: ValueSchema, text: str) -> None:
        threads.append(threading.get_ident())
        make(self, text)

    monkeypatch.setattr(ValueSchema, "__init__", noted)
    return threads


@pytest.mark.anyio
async def test_schema_is_made_beside_the_loop_at_its_first_batch(redis_server: Server, made_in: list[int]) -> None:
    async with front(redis_server.url) as one:
        for schema, codes in (({"title": unique()}, {0}), ({"type": unique()}, {INVALID_RECORD})):
            configs = {VALUE_SCHEMA: json.dumps(schema)}
            _, topic = await create_topic(one.catalog, one.log, unique(), 1, configs)
            assert topic is not None
            partition, data, found = one.log.partition(topic, 0), keyed((b"k", b"1")), set[int]()
            for _ in range(2):
                refused = await opened.refused_for_values(one.log, partition, header(data), data)
                found.add(0 if refused is None else refused.code)
            assert found == codes
    assert len(made_in) == 2
    assert threading.get_ident() not in made_in


@pytest.mark.anyio
async def test_schema_is_made_beside_the_loop_when_it_is_set(redis_server: Server, made_in: list[int]) -> None:
    async with front(redis_server.url) as one:
        ctx = cast(Context, SimpleNamespace(frontend=SimpleNamespace(log=one.log, catalog=one.catalog)))
        for _ in range(2):
            assert await topic_misconfigured(ctx, {VALUE_SCHEMA: json.dumps({"title": unique()})}, {}) is None
            refusal = await topic_misconfigured(ctx, {VALUE_SCHEMA: json.dumps({"type": unique()})}, {})
            assert refusal is not None
            assert "not a JSON Schema" in refusal[1]
    assert len(made_in) == 4
    assert threading.get_ident() not in made_in


@pytest.mark.anyio
async def test_tenant_whose_batches_take_long_leaves_a_thread_to_another(redis_server: Server) -> None:
    async with front(redis_server.url) as one:
        shared = Shared(one.store)
        hostile, victim = (
            Log(Namespace(name), one.store, one.catalog, one.wakeups, shared) for name in ("hostile", "victim")
        )
        begun, go_on = list[int](), threading.Event()

        def judge() -> None:
            begun.append(1)
            go_on.wait(30)

        async with anyio.create_task_group() as tasks:
            for _ in range(10):
                tasks.start_soon(hostile.in_thread, judge)
            while len(begun) < 2:
                await anyio.sleep(0.01)
            assert await victim.in_thread(lambda: len(begun)) == 2
            go_on.set()
    assert len(begun) == 10
