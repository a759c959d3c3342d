"""Clients over their quotas: served, told, and then not read for a while.

A wait is compared with the throttle time that the broker told, and only from below: a loaded machine takes longer.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from redis import Redis

from korvet.security.protocol import Security
from korvet.server.ground.settings import ListenerSettings
from tests.api.data import connected, fetch_request, produce_request, records, wanted
from tests.api.quotas import Client, client, limit
from tests.api.raw import ask, created, unique
from tests.api.test_share_fetch import Member, Topic, acknowledged, acquired, part
from tests.server.quotas import CLOCKS_S, WINDOWS, limited
from tests.support.broker import KorvetServer, running_broker
from tests.support.ported import kafka
from tests.support.redis import running_server
from tests.support.waiting import until


@pytest.fixture(scope="module")
def broker() -> Iterator[KorvetServer]:
    with running_broker(broker=WINDOWS) as broker:
        yield broker


@pytest.fixture
def port(broker: KorvetServer) -> int:
    return broker.port


def codes(answer: Any) -> set[str]:
    return {part["error_code"] for topic in answer["responses"] for part in topic["partition_responses"]}


def spend(one: Client, topic: str, size: int, **values: Any) -> int:
    """Produce a batch; the throttle time in ms."""
    answer = one.ask("produce", 12, **produce_request(topic, records(1, size), **values))
    assert codes(answer) == {"NONE"}
    return int(answer["throttle_time"])


def in_debt(port: int, topic: str, name: str, size: int) -> None:
    """Let a client produce more than its quota allows, on a connection that ends then."""
    with client(port, name) as one:
        assert spend(one, topic, size) > 0


def buckets(redis: Redis, name: str) -> list[Any]:
    """The keys of what Redis knows of a client's produced bytes."""
    return [key for key in redis.keys("*@quota*") if f"producer_byte_rate%20client-id%3D{name}".encode() in key]


# ---------------------------------------------------------------------- bytes


@kafka("ClientQuotaManagerTest.testQuotaViolation")
def test_a_produce_over_the_quota_is_stored_and_requests_after_it_wait(port: int) -> None:
    topic, name = created(port), limited(port, producer_byte_rate=10_000)
    with client(port, name) as one:
        assert spend(one, topic, 5_000) == 0
        began = time.monotonic()
        one.send("produce", 12, **produce_request(topic, records(1, 20_000)))
        one.send("api_versions", 0)
        answer = one.receive()
        assert codes(answer) == {"NONE"}
        throttle_s = answer["throttle_time"] / 1000
        # 25,000 and some bytes of headers are at most 16,000 too many.
        assert 0 < throttle_s <= 1.6
        one.receive()
        assert time.monotonic() - began >= throttle_s - CLOCKS_S


def test_requests_that_arrive_in_one_segment_wait_for_each_other(port: int) -> None:
    """Attack: a client sends many batches at once, before it can be told to wait."""
    topic, name = created(port), limited(port, producer_byte_rate=100_000)
    with client(port, name) as one:
        began = time.monotonic()
        for _ in range(8):
            one.send("produce", 12, **produce_request(topic, records(1, 50_000)))
        told = [one.receive()["throttle_time"] for _ in range(8)]
        took_s = time.monotonic() - began
    # The eighth is served when the debt of the seventh is paid: 350,000 bytes, of which 100,000 are free.
    assert took_s >= 2.4
    assert told[0] == 0 and max(told) > 0


def test_a_produce_without_an_answer_counts_too(port: int) -> None:
    topic, name = created(port), limited(port, producer_byte_rate=10_000)
    with client(port, name) as one:
        began = time.monotonic()
        one.send("produce", 12, **produce_request(topic, records(1, 30_000), acks=0))
        one.skip()
        one.ask("api_versions", 0)
        assert time.monotonic() - began >= 2.0


def test_a_client_of_the_same_bucket_waits_on_another_connection_as_well(port: int) -> None:
    topic, name = created(port), limited(port, producer_byte_rate=10_000)
    in_debt(port, topic, name, 600_000)
    with client(port, name) as other, client(port, unique("other")) as stranger:
        assert spend(other, topic, 10) > 10_000
        assert spend(stranger, topic, 10) == 0


def test_a_fetch_over_the_quota_is_empty_and_does_not_count(port: int) -> None:
    topic, name = created(port), limited(port, consumer_byte_rate=4_000)
    with client(port, name) as one:
        spend(one, topic, 30_000)
        asked = fetch_request(topic, wanted(0))
        served = one.ask("fetch", 12, **asked)
        assert served["throttle_time"] == 0 and served["responses"][0]["partitions"][0]["records"]
        over = one.ask("fetch", 12, **asked)
        assert over["responses"] == [] and over["error_code"] == "NONE"
        assert 0 < over["throttle_time"] <= 7_000
        until(lambda: bool(one.ask("fetch", 12, **asked)["responses"]), "the fetch is never served")


def test_a_share_fetch_over_the_quota_acknowledges_and_gets_no_records(broker: KorvetServer, port: int) -> None:
    group, name = unique("share"), limited(port, consumer_byte_rate=4_000)
    topic = Topic(broker, group)
    member = Member(broker, group)
    member.connection.socket.close()
    with client(port, name) as member.connection:
        topic.append(30, size=1_000)
        topic.append(5)
        assert acquired(member.fetch(part(topic.id), max_records=30)) == [(0, 29, 1)]
        over = member.fetch(part(topic.id, (0, 29, 1)))
        assert (acknowledged(over), acquired(over)) == (0, [])
        assert 0 < over["throttle_time"] <= 7_000
        until(lambda: acquired(member.fetch()) == [(30, 34, 1)], "the share fetch is never served")


def test_a_fetch_of_a_batch_larger_than_the_quota_gets_it(port: int) -> None:
    """Kafka's consumers would never get past it."""
    topic, name = created(port), limited(port, consumer_byte_rate=100)
    with client(port, name) as one:
        spend(one, topic, 5_000)
        (response,) = one.ask("fetch", 12, **fetch_request(topic, wanted(0)))["responses"]
        assert len(response["partitions"][0]["records"]) > 5_000


def test_fetches_in_a_loop_get_no_more_than_the_quota(port: int) -> None:
    """Attack: a client that does not heed the throttle time."""
    topic, name = created(port), limited(port, consumer_byte_rate=50_000)
    with client(port, name) as one:
        spend(one, topic, 25_000)
        began, got = time.monotonic(), 0
        for _ in range(12):
            answer = one.ask("fetch", 12, **fetch_request(topic, wanted(0)))
            got += sum(len(part["records"] or b"") for one in answer["responses"] for part in one["partitions"])
        took_s = time.monotonic() - began
    # The last batch may be beyond what the time allows.
    assert got <= 50_000 * (1 + took_s) + 26_000


# ---------------------------------------------------------------------- time


@kafka("RequestQuotaTest.testResponseThrottleTime", "RequestQuotaTest.testUnthrottledClient")
def test_a_client_over_its_part_of_time_is_throttled_with_any_request(port: int) -> None:
    name = limited(port, request_percentage=0.0001)
    asked = {"topics": None, "allow_auto_topic_creation": False}
    with client(port, name) as one, client(port, unique("other")) as stranger:
        told = [one.ask("metadata", 9, **asked)["throttle_time"] for _ in range(3)]
        # At most a window of a second, as in Kafka.
        assert 0 < max(told) <= 1000
        assert one.ask("api_versions", 2)["throttle_time"] > 0
        assert stranger.ask("metadata", 9, **asked)["throttle_time"] == 0


@kafka("RequestQuotaTest.testResponseThrottleTimeWhenBothProduceAndRequestQuotasViolated")
def test_the_longer_of_two_throttle_times_is_answered(port: int) -> None:
    topic, name = created(port), limited(port, producer_byte_rate=1_000, request_percentage=0.0001)
    with client(port, name) as one:
        assert spend(one, topic, 5_000) > 1_000


def test_requests_after_a_throttled_one_wait_even_if_they_were_read(port: int) -> None:
    name = limited(port, request_percentage=0.0001)
    with client(port, name) as one:
        one.ask("api_versions", 2)
        began = time.monotonic()
        for _ in range(3):
            one.send("api_versions", 2)
        told_ms = [one.receive()["throttle_time"] for _ in range(3)]
        assert time.monotonic() - began >= sum(told_ms[:2]) / 1000 - CLOCKS_S


def test_produces_held_back_by_a_throttled_one_wait(port: int) -> None:
    """A thread opens each batch, so the next Produce has not begun when the answer names the throttle time."""
    topic, name = created(port, compression_type="gzip"), limited(port, request_percentage=0.0001)
    with client(port, name) as one:
        began = time.monotonic()
        for _ in range(2):
            one.send("produce", 12, **produce_request(topic, records(1, 200_000)))
        told_ms = [one.receive()["throttle_time"] for _ in range(2)]
        assert min(told_ms) > 0
        assert time.monotonic() - began >= told_ms[0] / 1000 - CLOCKS_S


def test_requests_before_a_login_are_nobodys_use() -> None:
    """Attack: strangers use up the quota of clients that have not logged in yet."""
    listeners = [
        ListenerSettings(port=0, name="inside"),
        ListenerSettings(port=0, name="outside", security=Security.SASL_PLAINTEXT, sasl=("SCRAM-SHA-256",)),
    ]
    with running_broker(listeners=listeners, broker=WINDOWS) as broker:
        inside, outside = broker.ports
        limit(inside, {"user": None}, request_percentage=0.0001)
        with connected(outside) as one, connected(inside) as other:
            assert one.ask("api_versions", 2)["throttle_time"] == 0
            assert one.ask("sasl_handshake", 1, mechanism="SCRAM-SHA-256")["error_code"] == "NONE"
            assert other.ask("api_versions", 2)["throttle_time"] > 0


# ---------------------------------------------------------------------- the end of a throttle


def test_a_throttled_client_that_leaves_is_let_go(broker: KorvetServer) -> None:
    topic, name = created(broker.port), limited(broker.port, producer_byte_rate=100)
    with client(broker.port, name) as one:
        spend(one, topic, 100_000)
        before = connections(broker)
    until(lambda: connections(broker) < before, "the connection of a client that left is still open")


def test_a_throttled_client_that_leaves_within_a_request_is_let_go(broker: KorvetServer) -> None:
    topic, name = created(broker.port), limited(broker.port, producer_byte_rate=100)
    with client(broker.port, name) as one:
        spend(one, topic, 100_000)
        one.socket.sendall(b"\x00\x00")
        before = connections(broker)
    until(lambda: connections(broker) < before, "the connection of a client that left is still open")


@pytest.mark.parametrize("at_once", [False, True])
def test_requests_of_a_throttled_client_that_leaves_behind_them_are_served(broker: KorvetServer, at_once: bool) -> None:
    topic, name = created(broker.port), limited(broker.port, producer_byte_rate=10_000)
    sent = [produce_request(topic, records(1, size), acks=0) for size in (30_000, 10)]
    with client(broker.port, name) as one:
        if at_once:
            one.socket.sendall(b"".join(one.frame("produce", 12, **values) for values in sent))
        else:
            assert spend(one, topic, 30_000) > 1000
            one.send("produce", 12, **sent[1])
    where = {"name": topic, "partitions": [{"partition_index": 0, "timestamp": -1, "current_leader_epoch": -1}]}
    asked = {"replica_id": -1, "isolation_level": 0, "topics": [where]}

    def end() -> int:
        (found,) = ask(broker.port, "list_offsets", 7, **asked)["topics"][0]["partitions"]
        return int(found["offset"])

    until(lambda: end() == 2, "the record that was sent before the end is lost")


def connections(broker: KorvetServer) -> int:
    """The open connections of the broker, this one included."""
    count = 0
    for link in Path(f"/proc/{broker.pid}/fd").iterdir():
        # A descriptor may close meanwhile.
        with suppress(FileNotFoundError):
            count += "socket:" in str(link.readlink())
    return count


def test_a_front_end_that_stops_waits_for_no_throttle() -> None:
    with running_broker(broker=WINDOWS) as broker:
        topic, name = created(broker.port), limited(broker.port, producer_byte_rate=1)
        with client(broker.port, name) as one:
            assert spend(one, topic, 100_000) > 60_000
            one.send("api_versions", 0)
            assert broker.stop() == 0
            assert "cut off" not in broker.log


def test_requests_of_a_throttled_client_take_no_more_memory_than_others(broker: KorvetServer) -> None:
    """Attack: 64 MiB of requests behind a throttle. What is not read stays with the client."""
    topic, name = created(broker.port), limited(broker.port, producer_byte_rate=100)
    with client(broker.port, name) as one:
        spend(one, topic, 100_000)
        one.socket.settimeout(0.5)
        frame, sent = one.frame("produce", 12, **produce_request(topic, records(1, 1 << 20))), 0
        with pytest.raises(TimeoutError):
            while sent < 64 << 20:
                sent += one.socket.send(frame)
        assert sent < 32 << 20
        assert ask(broker.port, "metadata", 9, topics=None, allow_auto_topic_creation=False)["brokers"]


def test_a_throttled_member_keeps_its_place_in_the_group(port: int) -> None:
    """Its heartbeats go over another connection, as librdkafka's and Java's do; the throttle outlasts the session."""
    topic, name = created(port), limited(port, consumer_byte_rate=10_000)
    told_s: list[float] = []
    member = confluent_kafka.Consumer(
        {
            "bootstrap.servers": f"127.0.0.1:{port}",
            "client.id": name,
            "group.id": unique("group"),
            "session.timeout.ms": 15_000,
            "heartbeat.interval.ms": 1000,
            "auto.offset.reset": "earliest",
            "throttle_cb": lambda event: told_s.append(event.throttle_time),
        }
    )
    events: list[str] = []
    member.subscribe(
        [topic],
        on_assign=lambda *_: events.append("assigned"),
        on_revoke=lambda *_: events.append("revoked"),
        on_lost=lambda *_: events.append("lost"),
    )
    got: list[bytes | None] = []

    def poll() -> None:
        message = member.poll(0.1)
        if message is not None:
            assert message.error() is None, message.error()
            got.append(message.value())

    def has_got(count: int) -> bool:
        poll()
        return len(got) >= count

    try:
        with client(port, unique("producer")) as producer:
            spend(producer, topic, 250_000)
            until(lambda: has_got(1), "the first record never comes")
            spend(producer, topic, 10)
            member_id = member.memberid()
            until(lambda: has_got(2), "the second record never comes")
        # The first Fetch took what twenty-five seconds allow.
        assert max(told_s) > 15
        assert events == ["assigned"] and member.memberid() == member_id
    finally:
        member.close()


# ---------------------------------------------------------------------- several front-ends, and Redis


def test_what_one_front_end_let_through_counts_at_another() -> None:
    with running_broker(broker=WINDOWS) as one, running_broker(redis_url=f"unix://{one.embedded_socket}") as two:
        topic, name = created(one.port), limited(one.port, producer_byte_rate=1_000)
        in_debt(one.port, topic, name, 600_000)

        def is_told() -> bool:
            with client(two.port, name) as other:
                return spend(other, topic, 10) > 60_000

        until(is_told, "the other front-end does not know what its client used")


def test_a_front_end_that_dies_takes_no_debt_with_it() -> None:
    with running_broker(broker=WINDOWS) as broker:
        topic, name = created(broker.port), limited(broker.port, producer_byte_rate=1_000)
        in_debt(broker.port, topic, name, 600_000)
        with broker.redis() as redis:
            until(lambda: bool(buckets(redis, name)), "no report")
        broker.restart()

        def is_told() -> bool:
            with client(broker.port, name) as other:
                return spend(other, topic, 10) > 60_000

        until(is_told, "the new front-end does not know what the client used")


def test_a_lost_report_or_setting_of_redis_stops_nobody(broker: KorvetServer, port: int) -> None:
    """Redis loses its last writes: buckets are full again, and settings are read anew."""
    topic, name = created(port), limited(port, producer_byte_rate=1_000)
    in_debt(port, topic, name, 600_000)
    with broker.redis() as redis:
        until(lambda: bool(buckets(redis, name)), "no report")
        redis.delete(*buckets(redis, name))

    def is_free() -> bool:
        with client(port, name) as other:
            return spend(other, topic, 10) == 0

    until(is_free, "the front-end keeps a debt that Redis does not know")


def test_while_redis_is_away_a_front_end_goes_on_with_its_share() -> None:
    with running_server("valkey") as redis, running_broker(redis_url=redis.url, broker=WINDOWS, workers=2) as broker:
        name = limited(broker.port, request_percentage=0.0001)
        with client(broker.port, name) as one:
            # The worker of this connection may not be the one that took the quota.
            until(lambda: one.ask("api_versions", 2)["throttle_time"] > 0, "the worker does not know the quota")
            redis.kill()

            def is_divided() -> bool:
                # No request of these needs Redis, and each wait is a second at most.
                assert one.ask("api_versions", 2)["throttle_time"] > 0
                return "quotas are divided" in broker.log

            until(is_divided, "the front-end allows more than its share")
        assert "share=50%" in broker.log
