"""The limits of tenants, which hold for all of a tenant's clients together."""

from __future__ import annotations

from dataclasses import replace

import pytest

from korvet.cli import run
from tests.api.data import fetch_request, records, wanted
from tests.api.quotas import entry
from tests.server.choosing import BROKER, LISTENER, is_let_in
from tests.support.broker import KorvetServer, running_broker
from tests.support.tenants import Client, connected, create_tenant, korvet, make_topic, topics_of
from tests.support.waiting import until


@pytest.fixture(scope="module")
def broker(tenants_broker: KorvetServer) -> KorvetServer:
    return tenants_broker


def url_of(broker: KorvetServer) -> str:
    return f"unix://{broker.embedded_socket}"


def test_limits_of_topics_partitions_groups_and_connections_hold(broker: KorvetServer) -> None:
    create_tenant(broker, "small", "topics=2", "partitions=4", "connections=2", "groups=1")
    with connected(broker.port, login="alice@small") as client:
        made = [make_topic(client, name, count) for name, count in (("a", 3), ("b", 2), ("b", 1), ("c", 1))]
        assert made == ["NONE", "POLICY_VIOLATION", "NONE", "POLICY_VIOLATION"]
        asked = [{"name": "a", "count": 4, "assignments": None}]
        (grown,) = client.ask("create_partitions", 3, topics=asked, timeout=10_000)["results"]
        assert (grown["error_code"], grown["error_message"]) == (
            "POLICY_VIOLATION", "There are as many topics or partitions as the limits of this tenant allow.",
        )  # fmt: skip
        topics = [{"name": "a", "partitions": [{"partition_index": 0, "committed_offset": 0}]}]
        codes = []
        for group in ("first", "second"):
            values = {"generation_id_or_member_epoch": -1, "member_id": "", "topics": topics}
            answer = client.ask("offset_commit", 8, group_id=group, **values)
            codes.append(answer["topics"][0]["partitions"][0]["error_code"])
        assert codes == ["NONE", "POLICY_VIOLATION"]
        with connected(broker.port, login="alice@small"):
            assert not is_let_in(broker, "alice@small")
        with connected(broker.port, login="alice@acme") as other:
            assert make_topic(other, "not-limited", 9) == "NONE"
        korvet(broker, "tenants", "limit", "small", "topics=none", "partitions=none")
        until(lambda: make_topic(client, "c", 9) in ("NONE", "TOPIC_ALREADY_EXISTS"))


def test_transactional_ids_of_a_tenant_are_bounded_and_existing_ones_go_on(broker: KorvetServer) -> None:
    create_tenant(broker, "decided", "transactional-ids=16")
    values = {"transaction_timeout": 1000, "producer_id": -1, "producer_epoch": -1}

    def begin(client: Client, id: str) -> str:
        return str(client.ask("init_producer_id", 4, transactional_id=id, **values)["error_code"])

    with connected(broker.port, login="alice@decided") as client, connected(broker.port, login="alice@acme") as other:
        codes = {id: begin(client, id) for id in map(str, range(40))}
        made = [id for id, code in codes.items() if code == "NONE"]
        assert 10 <= len(made) <= 16 and set(codes.values()) == {"NONE", "POLICY_VIOLATION"}
        assert {begin(client, id) for id in made} == {"NONE"}
        assert {begin(other, id) for id in codes} == {"NONE"}
        korvet(broker, "tenants", "limit", "decided", "transactional-ids=none")
        refused = next(id for id in codes if id not in made)
        until(lambda: begin(client, refused) == "NONE")


def test_connections_of_a_tenant_are_bounded_over_all_front_ends(broker: KorvetServer) -> None:
    create_tenant(broker, "narrow", "connections=2")
    with (
        running_broker(listeners=[replace(LISTENER, port=0)], broker=BROKER, redis_url=url_of(broker)) as other,
        connected(broker.port, login="alice@narrow") as one,
        connected(other.port, login="alice@narrow"),
    ):
        with broker.redis() as redis:
            until(lambda: redis.hlen("korvet:{@tenants}:connections:tenant:narrow") == 2)
        until(lambda: not is_let_in(broker, "alice@narrow") and not is_let_in(other, "alice@narrow"))
        assert topics_of(one) == set()
        korvet(broker, "tenants", "limit", "narrow", "connections=3")
        until(lambda: is_let_in(broker, "alice@narrow") and is_let_in(other, "alice@narrow"))


def put(client: Client, topic: str, size: int = 5000) -> str:
    """The code of a produced record."""
    data = [{"name": topic, "partition_data": [{"index": 0, "records": records(1, size)}]}]
    answer = client.ask("produce", 9, acks=-1, timeout=1000, topic_data=data, transactional_id=None)
    return str(answer["responses"][0]["partition_responses"][0]["error_code"])


def throttle_of(client: Client, topic: str, size: int) -> int:
    """The throttle time in ms that a produced record is answered with."""
    data = [{"name": topic, "partition_data": [{"index": 0, "records": records(1, size)}]}]
    return int(client.ask("produce", 9, acks=-1, timeout=1000, topic_data=data, transactional_id=None)["throttle_time"])


def test_rates_of_a_tenant_count_for_all_its_clients_above_its_own_quotas(broker: KorvetServer) -> None:
    create_tenant(broker, "fast", "producer-byte-rate=5000", "consumer-byte-rate=1000", users=("alice", "bob"))
    with (
        connected(broker.port, login="alice@fast") as alice,
        connected(broker.port, login="bob@fast") as bob,
        connected(broker.port, login="alice@acme") as other,
    ):
        assert make_topic(alice, "t") == "NONE" and make_topic(other, "not-fast") == "NONE"
        quota = entry({"user": "bob"}, producer_byte_rate=10**9)
        assert (
            bob.ask("alter_client_quotas", 1, entries=[quota], validate_only=False)["entries"][0]["error_code"]
            == "NONE"
        )
        assert throttle_of(alice, "t", 45_000) == 0, "ten seconds' worth may be used at once"
        assert throttle_of(bob, "t", 40_000) > 0, "a tenant's own quota lifts no ceiling"
        assert throttle_of(other, "not-fast", 100_000) == 0
        fetch = fetch_request("t", wanted(0))
        assert alice.ask("fetch", 11, **fetch)["throttle_time"] == 0
        until(lambda: alice.ask("fetch", 11, **fetch)["throttle_time"] > 0)
    korvet(broker, "tenants", "limit", "fast", "producer-byte-rate=none", "consumer-byte-rate=none")


def test_partitions_that_a_tenant_makes_and_deletes_have_a_rate(broker: KorvetServer) -> None:
    create_tenant(broker, "makers", "controller-mutation-rate=1")

    def made(name: str) -> str:
        # A refusal throttles its connection for minutes.
        with connected(broker.port, login="alice@makers") as another:
            return make_topic(another, name)

    with connected(broker.port, login="alice@makers") as alice:
        assert make_topic(alice, "t", partitions=400) == "NONE", "any number fits while the quota is not used up"
        assert made("u") == "THROTTLING_QUOTA_EXCEEDED"
        asked = alice.ask("metadata", 12, topics=[{"topic_id": None, "name": "v"}])["topics"]
        assert [topic["error_code"] for topic in asked] == ["UNKNOWN_TOPIC_OR_PARTITION"]
        assert topics_of(alice) == {"t"}
        korvet(broker, "tenants", "limit", "makers", "controller-mutation-rate=none")
        until(lambda: made("u") == "NONE")


@pytest.mark.parametrize("limits", [["producer-byte-rate=0"], ["connection-rate=x"], ["connection-rate"]])
def test_rates_that_would_stop_everything_are_refused(limits: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["tenants", "limit", "acme", *limits, "--redis", "redis://127.0.0.1:1"]) == 2
    assert limits[0] in capsys.readouterr().err


def test_connections_of_a_tenant_come_no_faster_than_its_rate(broker: KorvetServer) -> None:
    create_tenant(broker, "often", "connection-rate=1")
    # A wait may let one in, so there are more than the eleven that come at once.
    assert not all(is_let_in(broker, "alice@often") for _ in range(100))
    assert is_let_in(broker, "alice@acme")
    until(lambda: is_let_in(broker, "alice@often"))


def test_quota_of_an_address_within_a_tenant_counts_when_its_client_enters(broker: KorvetServer) -> None:
    create_tenant(broker, "addressed")
    with connected(broker.port, login="alice@addressed") as client:
        quota = entry({"ip": None}, connection_creation_rate=1)
        altered = client.ask("alter_client_quotas", 1, entries=[quota], validate_only=False)
        assert altered["entries"][0]["error_code"] == "NONE"
        assert not all(is_let_in(broker, "alice@addressed") for _ in range(100))
        assert is_let_in(broker, "alice@acme")


def test_quota_of_the_lobby_counts_before_a_client_says_anything(broker: KorvetServer) -> None:
    korvet(broker, "quotas", "set", "--lobby", "--ip", "127.0.0.1", "connection_creation_rate=1")

    def is_closed() -> bool:
        with connected(broker.port) as client:
            client.socket.settimeout(0.2)
            try:
                return client.is_closed()
            except TimeoutError:
                return False

    try:
        until(is_closed)
    finally:
        korvet(broker, "quotas", "remove", "--execute", "--lobby", "--ip", "127.0.0.1")
    until(lambda: not is_closed())


def test_producers_of_a_tenant_with_too_many_bytes_wait_and_all_else_goes_on(broker: KorvetServer) -> None:
    create_tenant(broker, "heavy", "bytes=20000")
    with connected(broker.port, login="alice@heavy") as client, connected(broker.port, login="alice@acme") as other:
        assert make_topic(client, "t") == "NONE" and make_topic(other, "not-heavy") == "NONE"
        until(lambda: put(client, "t") == "KAFKA_STORAGE_ERROR")
        assert put(other, "not-heavy") == "NONE"
        topics = [{"name": "t", "partitions": [{"partition_index": 0, "committed_offset": 1}]}]
        values = {"generation_id_or_member_epoch": -1, "member_id": "", "topics": topics}
        answer = client.ask("offset_commit", 8, group_id="g", **values)
        assert answer["topics"][0]["partitions"][0]["error_code"] == "NONE"
        asked = [{"topic": "t", "partitions": [{"partition": 0, "partition_max_bytes": 1000, "fetch_offset": 0}]}]
        read = client.ask("fetch", 12, replica_id=-1, max_wait=100, min_bytes=1, max_bytes=9999, session_epoch=-1,
                          topics=asked)  # fmt: skip
        assert read["responses"][0]["partitions"][0]["records"]
        deleted = [{"name": "t", "partitions": [{"partition_index": 0, "offset": -1}]}]
        client.ask("delete_records", 2, topics=deleted, timeout=10_000)
        until(lambda: put(client, "t", 10) == "NONE")


def test_state_of_a_tenant_counts_towards_its_bytes_and_only_what_grows_is_refused(broker: KorvetServer) -> None:
    create_tenant(broker, "hoarder", "bytes=300000")
    with connected(broker.port, login="alice@hoarder") as client, connected(broker.port, login="alice@acme") as other:
        assert make_topic(client, "t", 100) == "NONE" and make_topic(other, "not-hoarder", 100) == "NONE"

        def committed(client: Client, topic: str, group: str) -> str:
            parts = [{"partition_index": n, "committed_offset": 0, "committed_metadata": "m" * 4096} for n in range(50)]
            values = {
                "generation_id_or_member_epoch": -1,
                "member_id": "",
                "topics": [{"name": topic, "partitions": parts}],
            }
            answer = client.ask("offset_commit", 8, group_id=group, **values)
            return str(answer["topics"][0]["partitions"][0]["error_code"])

        def joined(group: str) -> str:
            protocols = [{"name": "range", "metadata": b"m" * 100}]
            values = {"session_timeout": 10_000, "rebalance_timeout": 10_000, "protocol_type": "consumer"}
            answer = client.ask("join_group", 5, group_id=group, member_id="", protocols=protocols, **values)
            return str(answer["error_code"])

        beat = {"member_id": "m", "rebalance_timeout": 10_000, "topic_partitions": []}
        names = {"subscribed_topic_names": [f"{n:0200}" for n in range(10)]}
        first = client.ask("consumer_group_heartbeat", 1, group_id="old", member_epoch=0, **beat, **names)
        assert first["error_code"] == "NONE"
        codes = [committed(client, "t", f"g{n}") for n in range(30)]
        assert (codes[0], codes[-1]) == ("NONE", "COORDINATOR_NOT_AVAILABLE")
        with broker.redis() as redis:
            keys = list(redis.scan_iter("korvet:{hoarder:*"))
            assert sum(redis.memory_usage(key, samples=0) or 0 for key in keys) < 2 * 300_000
        korvet(broker, "tenants", "limit", "hoarder", "bytes=20000")
        until(lambda: joined("new") == "COORDINATOR_NOT_AVAILABLE")
        begun = {"transaction_timeout": 1000, "producer_id": -1, "producer_epoch": -1}
        assert (
            client.ask("init_producer_id", 4, transactional_id="x", **begun)["error_code"]
            == "COORDINATOR_NOT_AVAILABLE"
        )
        more = client.ask(
            "consumer_group_heartbeat", 1, group_id="old", member_epoch=0, **{**beat, "member_id": "n"}, **names
        )
        assert more["error_code"] == "COORDINATOR_NOT_AVAILABLE"
        lives = {"member_id": "m", "rebalance_timeout": -1, "topic_partitions": None, "subscribed_topic_names": None}
        beaten = client.ask("consumer_group_heartbeat", 1, group_id="old", member_epoch=first["member_epoch"], **lives)
        assert beaten["error_code"] == "NONE"
        assert committed(other, "not-hoarder", "g") == "NONE"
        client.ask("delete_groups", 2, groups_names=[f"g{n}" for n in range(30)])
        korvet(broker, "tenants", "limit", "hoarder", "bytes=300000")
        until(lambda: committed(client, "t", "after") == "NONE")
