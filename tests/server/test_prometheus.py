"""A real Prometheus scrapes a broker under load: every query of every dashboard and every alert rule has values."""

from __future__ import annotations

import json
import re
import socket
import struct
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from korvet.metrics.families import FAMILIES, Kind
from korvet.security.protocol import Security
from korvet.server.ground.settings import ListenerSettings
from korvet.store.keys import Namespace
from tests.api.telemetry import subscribed
from tests.metrics.otlp import DELTA, gauge, point, pushed, total
from tests.support.broker import KorvetServer, running_broker
from tests.support.prometheus import RULES, Prometheus, operands, running_prometheus
from tests.support.redis import Server, running_server
from tests.support.scraping import Figures, scrape
from tests.support.tools import find_tool
from tests.support.waiting import until
from tests.support.wire import request

WITHIN_S = 60.0
DASHBOARDS = sorted((RULES.parents[1] / "grafana").glob("*.json"))
HEARTBEAT = request(12, 0, 43, body=b"\x00\x01g" + bytes(4) + b"\x00\x01m")
OFFSETS_OF_BROKEN = request(
    2, 1, 46, body=b"\xff\xff\xff\xff\x00\x00\x00\x01\x00\x06broken" + struct.pack(">iiq", 1, 0, -1)
)
UNKNOWN_MECHANISM = request(17, 1, 44, body=b"\x00\x07UNKNOWN")
PLACED = b"x" * 20_000
MANY = 100
SERIES = 150
_INTERVAL = {"$__rate_interval": "20s", "$namespace": ".*", "$topic": ".*", "$group": ".*"}
_LABEL_VALUES = re.compile(r"label_values\((.+), (\w+)\)")


@dataclass(frozen=True)
class Stage:
    """A broker under load, its Redis, and the Prometheus that scrapes it."""

    broker: KorvetServer
    redis: Server
    prometheus: Prometheus

    def until_it_has_values(self, expression: str) -> None:
        """Ask until an expression has values."""
        for name, value in _INTERVAL.items():
            expression = expression.replace(name, value)
        until(lambda: bool(self.prometheus.query(expression)), f"it has values: {expression}")


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    find_tool("prometheus")
    listeners = (
        ListenerSettings(port=0),
        ListenerSettings(port=0, name="inside", security=Security.parse("sasl_plaintext"), sasl=("SCRAM-SHA-512",)),
    )
    with ExitStack() as stack:
        redis = stack.enter_context(running_server("valkey"))
        with redis.client() as client:
            client.config_set("maxmemory", 1 << 30)
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kv")))
        settings = {"korvet.metrics.max.series": str(SERIES)}
        broker = stack.enter_context(
            running_broker(
                redis_url=redis.url, listeners=listeners, broker=settings, has_metrics=True,
                tier=str(directory / "tier"),
            )
        )  # fmt: skip
        stack.enter_context(load(broker, redis))
        yield Stage(broker, redis, stack.enter_context(running_prometheus(directory, broker.metrics_port)))


@contextmanager
def load(broker: KorvetServer, redis: Server) -> Iterator[None]:
    """Producers, consumers and a transaction, and clients that are refused, until the block ends."""
    common = {"bootstrap.servers": broker.bootstrap}
    producer = Producer(common)
    for topic in ("orders", "broken", "open"):
        producer.produce(topic, b"first")
    assert producer.flush(60) == 0
    commit_for_archive(common)
    for number in range(MANY):
        ask(broker.ports[0], commit_request(f"z-{number:03d}"))
    push_metrics(broker)
    transactional = Producer({**common, "transactional.id": "t", "transaction.timeout.ms": 600_000})
    transactional.init_transactions(60)
    transactional.begin_transaction()
    transactional.produce("open", b"in a transaction")
    assert transactional.flush(60) == 0
    break_partition(redis, "broken")
    is_over = threading.Event()
    loads = [
        threading.Thread(target=work, args=(is_over, *some))
        for some in ((produce(producer),), (consume(common),), (be_refused(broker),))
    ]
    for one in loads:
        one.start()
    try:
        yield
    finally:
        is_over.set()
        for one in loads:
            one.join()
        with suppress(KafkaException):
            transactional.purge()
        producer.purge()


def work(is_over: threading.Event, steps: Iterator[None]) -> None:
    while not is_over.wait(0.05):
        with suppress(KafkaException, BufferError):
            next(steps)


def produce(producer: Producer) -> Iterator[None]:
    while True:
        producer.produce("orders", b"small")
        producer.produce("orders", PLACED)
        producer.poll(0)
        yield


def consume(common: dict[str, str]) -> Iterator[None]:
    settings = {"group.id": "g", "auto.offset.reset": "earliest", "auto.commit.interval.ms": 200}
    consumer = Consumer({**common, **settings})
    consumer.subscribe(["orders"])
    try:
        while True:
            consumer.consume(10, 0.1)
            yield
    finally:
        consumer.close()


def be_refused(broker: KorvetServer) -> Iterator[None]:
    while True:
        for data in (HEARTBEAT, OFFSETS_OF_BROKEN, b"\xff\xff\xff\xff"):
            ask(broker.ports[0], data)
        ask(broker.ports[1], UNKNOWN_MECHANISM)
        yield


def ask(port: int, data: bytes) -> None:
    """Send something on a connection of its own, and wait for some answer, or for the end of the connection."""
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), WITHIN_S) as client:
        client.settimeout(WITHIN_S)
        client.sendall(data)
        client.recv(1)


def commit_request(group: str) -> bytes:
    """An OffsetCommit v2 of a consumer that is no member."""
    head = struct.pack(">h", len(group)) + group.encode() + struct.pack(">ih", -1, 0) + struct.pack(">q", -1)
    return request(8, 2, 45, body=head + b"\x00\x00\x00\x01\x00\x06orders" + struct.pack(">iiqh", 1, 0, 0, 0))


def push_metrics(broker: KorvetServer) -> None:
    with subscribed(broker, metrics="*", interval_ms="200000") as (client, told):
        difference = total("b", point(1), temporality=DELTA)
        assert client.push(told, pushed(gauge("app.level", point(7)), difference)) == "NONE"


def commit_for_archive(common: dict[str, str]) -> None:
    consumer = Consumer({**common, "group.id": "korvet.archive"})
    consumer.commit(offsets=[TopicPartition("orders", 0, 0)], asynchronous=False)
    consumer.close()


def break_partition(redis: Server, topic: str) -> None:
    with redis.client() as client:
        client.set(Namespace().partition(topic, 0).meta, "x")


# ---------------------------------------------------------------------- what has values


def test_every_metric_of_the_table_is_exported_under_load(stage: Stage) -> None:
    def untold(figures: Figures) -> set[str]:
        names = {name for name, _ in figures}
        part = {Kind.HISTOGRAM: "_count"}
        return {name for name, family in FAMILIES.items() if name + part.get(family.kind, "") not in names}

    deadline = time.monotonic() + WITHIN_S
    while missing := untold(scrape(stage.broker.metrics_port)):
        assert time.monotonic() < deadline, f"these are not told: {missing}"
        time.sleep(0.2)


def test_metrics_of_clients_join_what_is_known_of_the_client(stage: Stage) -> None:
    stage.until_it_has_values(
        "kafka_client_app_level * on (namespace, client_instance_id) group_left (principal) korvet_client_info == 7"
    )


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_every_query_of_a_dashboard_has_values(stage: Stage, path: Path) -> None:
    dashboard = json.loads(path.read_text())
    expressions = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    assert len(expressions) >= len(dashboard["panels"]) > 0
    for expression in expressions:
        stage.until_it_has_values(expression)
    variables = [one for one in dashboard["templating"]["list"] if one["type"] == "query"]
    for variable in variables:
        found = _LABEL_VALUES.fullmatch(variable["query"]["query"])
        assert found is not None
        stage.until_it_has_values(f"{found[1]} and on ({found[2]}) {found[1]}")


def test_every_part_of_every_alert_rule_has_values(stage: Stage) -> None:
    rules = stage.prometheus.rules()
    assert len(rules) > 15
    for rule in rules:
        parts = operands(rule["query"])
        assert parts, rule["query"]
        for part in parts:
            stage.until_it_has_values(part)
    until(lambda: {rule["health"] for rule in stage.prometheus.rules()} == {"ok"}, "all rules are evaluated")


def test_promtool_finds_nothing_wrong_with_the_rules() -> None:
    checked = subprocess.run([find_tool("promtool"), "check", "rules", str(RULES)], capture_output=True, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_promtool_finds_nothing_wrong_with_the_metrics(stage: Stage) -> None:
    with socket.create_connection(("127.0.0.1", stage.broker.metrics_port), WITHIN_S) as client:
        client.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        page = b"".join(iter(lambda: client.recv(65536), b"")).partition(b"\r\n\r\n")[2]
    checked = subprocess.run([find_tool("promtool"), "check", "metrics"], input=page, capture_output=True, check=False)
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, b"", b"")


def test_an_alert_fires_if_redis_is_away(stage: Stage) -> None:
    def state(name: str) -> str:
        return next(str(rule["state"]) for rule in stage.prometheus.rules() if rule["name"] == name)

    assert state("KorvetRedisAway") == "inactive"
    with stage.redis.paused():
        until(lambda: state("KorvetRedisAway") in ("pending", "firing"), "the alert is there")
    until(lambda: state("KorvetRedisAway") == "inactive", "the alert is over")


@pytest.mark.parametrize(
    "expression, parts",
    [
        ("a < b", ["a", "b"]),
        ('sum by (x) (a{b!~"c|d > e"}) / b > 0.85', ['sum by (x) (a{b!~"c|d > e"}) / b']),
        ("max(a[15m]) > 0 and max by (and) (b) == 0", ["max(a[15m])", "max by (and) (b)"]),
    ],
)
def test_expressions_are_taken_apart(expression: str, parts: Sequence[str]) -> None:
    assert operands(expression) == parts
