"""The HTTP port of a broker: the figures of all its workers, and its health."""

from __future__ import annotations

import os
import re
import signal
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import psutil
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from korvet.server.ground.settings import ListenerSettings, ServeSettings
from korvet.server.processes.figures import kafka_name
from tests.api.quotas import limit
from tests.oracle.batches import Batch, encode
from tests.oracle.messages import request_frame
from tests.support.broker import KorvetServer, running_broker
from tests.support.redis import running_server
from tests.support.scraping import Figures, ask, ask_with_type, scrape, scrape_until, total
from tests.support.waiting import until
from tests.support.wire import request

WITHIN_S = 60.0
METADATA = request(3, 1, 42, body=b"\x00\x00\x00\x00")
CREATION = request(19, 2, 44, body=b"\x00\x00\x00\x01\x00\x01t" + struct.pack(">ihiiib", 1, 1, 0, 0, 10_000, 0))
NOWHERE = [{"name": "nowhere", "partitions": [{"partition_index": 0}]}]
FETCH_NOWHERE = [{"topic": "nowhere", "partitions": [{"partition": 0}]}]
DATA_NOWHERE = [{"name": "nowhere", "partition_data": [{"index": 0, "records": encode(Batch(count=1, value=b"v"))}]}]


@pytest.fixture(scope="module")
def server() -> Iterator[KorvetServer]:
    with running_broker(workers=2, has_metrics=True) as broker:
        yield broker


def send(server: KorvetServer, data: bytes) -> None:
    """One request on a connection of its own, which any worker may get; wait for the answer."""
    with socket.create_connection(("127.0.0.1", server.port), WITHIN_S) as client:
        client.settimeout(WITHIN_S)
        client.sendall(data)
        (size,) = struct.unpack(">i", client.recv(4, socket.MSG_WAITALL))
        assert len(client.recv(size, socket.MSG_WAITALL)) == size


def workers(server: KorvetServer) -> set[int]:
    children = psutil.Process(server.pid).children()
    return {child.pid for child in children if "korvet.server.processes.worker" in child.cmdline()}


def test_requests_of_all_workers_are_added_up(server: KorvetServer) -> None:
    before = total(scrape(server.metrics_port), "korvet_requests_total", api="Metadata")
    for _ in range(20):
        send(server, METADATA)
    figures = scrape_until(
        server.metrics_port,
        lambda found: total(found, "korvet_requests_total", api="Metadata", version="1") == before + 20,
        "each request is counted",
    )
    count = total(figures, "korvet_requests_total", api="Metadata")
    assert total(figures, "korvet_request_duration_seconds_count", api="Metadata") == count
    assert total(figures, "korvet_request_duration_seconds_bucket", api="Metadata", le="+Inf") == count
    # A frame's size field is not counted among a request's bytes.
    assert total(figures, "korvet_request_bytes_total", api="Metadata") == count * (len(METADATA) - 4)
    assert total(figures, "korvet_response_bytes_total", api="Metadata") > count


@pytest.mark.parametrize(
    "api, version, values, error",
    [
        ("heartbeat", 3, {"group_id": "g", "member_id": "m"}, "UNKNOWN_MEMBER_ID"),
        ("sync_group", 3, {"group_id": "g", "member_id": "m"}, "UNKNOWN_MEMBER_ID"),
        ("join_group", 5, {"group_id": "", "session_timeout": 9000, "protocol_type": "c"}, "INVALID_GROUP_ID"),
        ("offset_commit", 8, {"group_id": "g", "topics": NOWHERE}, "UNKNOWN_TOPIC_OR_PARTITION"),
        ("fetch", 4, {"max_wait": 0, "topics": FETCH_NOWHERE}, "UNKNOWN_TOPIC_OR_PARTITION"),
        ("produce", 9, {"acks": -1, "timeout": 1000, "topic_data": DATA_NOWHERE}, "UNKNOWN_TOPIC_OR_PARTITION"),
        ("list_offsets", 5, {"replica_id": -1, "topics": NOWHERE}, "UNKNOWN_TOPIC_OR_PARTITION"),
        ("metadata", 8, {"topics": [{"name": "no name"}]}, "INVALID_TOPIC_EXCEPTION"),
        ("delete_groups", 2, {"groups_names": ["no-such-group"]}, "GROUP_ID_NOT_FOUND"),
    ],
)
def test_error_codes_of_answers_are_counted(
    server: KorvetServer, api: str, version: int, values: dict[str, Any], error: str
) -> None:
    """Of answers that are packed by hand, and of others."""
    labels = {"api": kafka_name(api), "error": error}
    before = total(scrape(server.metrics_port), "korvet_request_errors_total", **labels)
    for _ in range(3):
        send(server, request_frame(api, version, values, 1))
    scrape_until(
        server.metrics_port,
        lambda found: total(found, "korvet_request_errors_total", **labels) == before + 3,
        "each refusal is counted",
    )


def test_connections_come_and_go(server: KorvetServer) -> None:
    def is_open(count: int) -> None:
        scrape_until(
            server.metrics_port,
            lambda found: total(found, "korvet_connections", listener="default", mechanism="none") == count,
            f"{count} connections are open",
        )

    is_open(0)
    with socket.create_connection(("127.0.0.1", server.port)), socket.create_connection(("127.0.0.1", server.port)):
        is_open(2)
    is_open(0)


def test_clients_are_counted_by_namespace(server: KorvetServer) -> None:
    def are_there(count: int) -> None:
        scrape_until(
            server.metrics_port,
            lambda found: total(found, "korvet_clients", namespace="default") == count,
            f"{count} clients are there",
        )

    are_there(0)
    with socket.create_connection(("127.0.0.1", server.port), WITHIN_S) as client:
        client.sendall(METADATA)
        assert client.recv(1)
        are_there(1)
    are_there(0)


def test_malformed_requests_are_counted(server: KorvetServer) -> None:
    with socket.create_connection(("127.0.0.1", server.port), WITHIN_S) as client:
        client.sendall(b"\xff\xff\xff\xff")
        assert client.recv(1) == b""
    scrape_until(
        server.metrics_port,
        lambda found: total(found, "korvet_client_events_total", event="malformed request; closing") >= 1,
        "the line is counted",
    )


def test_openmetrics_is_sent_if_it_is_accepted(server: KorvetServer) -> None:
    accept = "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3"
    status, text, content_type = ask_with_type(server.metrics_port, "/metrics", accept=accept)
    assert (status, content_type.partition(";")[0]) == (200, "application/openmetrics-text")
    assert text.endswith("# EOF\n")
    families = text_string_to_metric_families(text)  # type: ignore[no-untyped-call]
    assert {family.name for family in families} > {"korvet_worker_restarts", "korvet_workers"}
    _, text, content_type = ask_with_type(server.metrics_port, "/metrics")
    assert content_type.startswith("text/plain")
    assert "# EOF" not in text


def test_only_reading_is_allowed(server: KorvetServer) -> None:
    for path in ("/metrics", "/livez", "/readyz"):
        assert ask(server.metrics_port, path)[0] == 200
        assert ask(server.metrics_port, path, "HEAD") == (200, "")
        assert ask(server.metrics_port, path, "POST")[0] == 405
    assert ask(server.metrics_port, "/")[0] == 404


def test_counters_do_not_go_back_when_a_worker_dies(server: KorvetServer) -> None:
    for _ in range(10):
        send(server, METADATA)
    before = scrape_until(
        server.metrics_port, lambda found: total(found, "korvet_requests_total") >= 10, "requests are counted"
    )
    restarts = total(before, "korvet_worker_restarts_total")
    victim = min(workers(server))
    os.kill(victim, signal.SIGKILL)
    after = scrape_until(
        server.metrics_port,
        lambda found: (
            total(found, "korvet_worker_restarts_total") == restarts + 1 and total(found, "korvet_workers_up") == 2
        ),
        "another one is there",
    )
    assert total(after, "korvet_requests_total") >= total(before, "korvet_requests_total")


def test_a_worker_that_hangs_holds_up_no_scrape(server: KorvetServer) -> None:
    victim = min(workers(server))
    os.kill(victim, signal.SIGSTOP)
    try:
        scrape_until(
            server.metrics_port,
            lambda found: max(silences(found)) > 6 > min(silences(found)),
            "its silence is told, and the other one goes on",
        )
        until(lambda: ask(server.metrics_port, "/readyz")[0] == 200, "the other worker serves")
    finally:
        os.kill(victim, signal.SIGCONT)
    scrape_until(server.metrics_port, lambda found: max(silences(found)) < 6, "it is back")


def silences(figures: Figures) -> list[float]:
    return [value for (name, _), value in figures.items() if name == "korvet_worker_silent_seconds"]


def test_readiness_follows_redis_and_liveness_does_not() -> None:
    with running_server("valkey") as redis, running_broker(redis_url=redis.url, has_metrics=True) as server:
        port = server.metrics_port
        until(lambda: ask(port, "/readyz") == (200, "ok\n"), "it is ready")
        redis.kill()
        until(lambda: ask(port, "/readyz")[0] == 503, "it is not ready without Redis")
        # A unix socket that is gone.
        assert re.match(r"worker 1: Redis \(.+\): ", ask(port, "/readyz")[1])
        assert ask(port, "/livez") == (200, "ok\n")
        redis.start()
        until(lambda: ask(port, "/readyz") == (200, "ok\n"), "it is ready again")
        assert total(scrape(port), "korvet_redis_links_lost_total") >= 1


def test_a_broker_whose_redis_takes_no_writes_is_not_ready() -> None:
    with running_server("valkey") as redis, running_broker(redis_url=redis.url, has_metrics=True) as server:
        port = server.metrics_port
        until(lambda: ask(port, "/readyz") == (200, "ok\n"), "it is ready")
        with redis.client() as client:
            client.config_set("min-replicas-to-write", 1)
            until(lambda: "min-replicas-to-write" in ask(port, "/readyz")[1], "the reason is told")
            assert total(scrape(port), "korvet_redis_takes_writes") == 0
            client.config_set("min-replicas-to-write", 0)
        until(lambda: ask(port, "/readyz") == (200, "ok\n"), "it is ready again")


def test_a_broker_whose_redis_lacks_its_library_is_not_ready() -> None:
    with running_server("valkey") as redis, running_broker(redis_url=redis.url, has_metrics=True) as server:
        port = server.metrics_port
        until(lambda: ask(port, "/readyz") == (200, "ok\n"), "it is ready")
        with redis.client() as client:
            # A server that is full takes no library again.
            client.config_set("maxmemory", 1)
            client.function_flush()
            until(lambda: "lacks korvet's functions" in ask(port, "/readyz")[1], "the reason is told")
            scrape_until(port, lambda found: total(found, "korvet_redis_takes_writes") == 0, "the figure tells it")
            client.config_set("maxmemory", 0)
        until(lambda: ask(port, "/readyz") == (200, "ok\n"), "it is ready again")


def test_a_broker_that_waits_for_redis_is_not_ready() -> None:
    with running_server("valkey") as redis, tempfile.TemporaryDirectory(prefix="kv") as directory:
        redis.kill()
        server = KorvetServer(Path(directory), redis_url=redis.url, has_metrics=True)
        try:
            server.start(wait=False)
            until(lambda: "redis is not available" in server.log, "it waits")
            assert ask(server.metrics_port, "/readyz") == (503, "starting: no front-end runs yet\n")
            assert ask(server.metrics_port, "/livez")[0] == 200
            redis.start()
            server.wait_until_ready()
            until(lambda: ask(server.metrics_port, "/readyz")[0] == 200, "it is ready")
        finally:
            server.kill()


def test_a_draining_broker_is_not_ready() -> None:
    with running_broker(has_metrics=True) as server:
        (worker,) = workers(server)
        # It takes its time to drain, so the supervisor waits for it.
        os.kill(worker, signal.SIGSTOP)
        assert server.process is not None
        server.process.send_signal(signal.SIGTERM)
        until(lambda: ask(server.metrics_port, "/readyz") == (503, "draining\n"), "it says so")
        assert ask(server.metrics_port, "/livez")[0] == 200
        os.kill(worker, signal.SIGCONT)
        assert server.stop() == 0


def test_a_taken_port_is_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, tempfile.TemporaryDirectory(prefix="kv") as directory:
        port = taken.getsockname()[1]
        settings = ServeSettings(
            listeners=(ListenerSettings(port=0),), data_dir=Path(directory), metrics=("127.0.0.1", port)
        )
        ended = subprocess.run(
            [sys.executable, "-m", "korvet.server", settings.to_json()],
            capture_output=True, text=True, timeout=WITHIN_S, check=False,
        )  # fmt: skip
        assert ended.returncode == 1
        assert ended.stderr == f"korvet: cannot listen on 127.0.0.1:{port}: address already in use\n"


def test_one_of_two_brokers_exports_topics() -> None:
    with running_server("valkey") as redis, serving(redis.url) as one, serving(redis.url) as other:

        def tellers() -> list[KorvetServer]:
            return [broker for broker in (one, other) if total(scrape(broker.metrics_port), "korvet_topics") == 1]

        send(one, CREATION)
        until(lambda: len(tellers()) == 1, "one tells of the topic")
        (teller,) = tellers()
        rest = other if teller is one else one
        teller.kill()
        until(lambda: total(scrape(rest.metrics_port), "korvet_topics") == 1, "the other one does it now")


def serving(redis_url: str) -> AbstractContextManager[KorvetServer]:
    return running_broker(redis_url=redis_url, has_metrics=True)


def test_throttles_are_counted() -> None:
    # A second worker would hear of the quota a moment later.
    with running_broker(has_metrics=True) as server:
        assert total(scrape(server.metrics_port), "korvet_throttles_total") == 0
        limit(server.port, {"client_id": "oracle"}, producer_byte_rate=1.0)
        send(server, request_frame("produce", 9, {"acks": -1, "timeout": 1000, "topic_data": DATA_NOWHERE}, 1))
        figures = scrape_until(
            server.metrics_port, lambda found: total(found, "korvet_throttles_total") == 1, "the throttle is counted"
        )
        assert total(figures, "korvet_throttle_seconds_total") > 0
