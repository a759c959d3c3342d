"""Two tenants with the same names: each API, with the other's names, ids and members, shows and changes nothing."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import pytest
from kio.schema.index import api_key_map

from korvet.api import registry
from korvet.security.protocol import NamespaceFrom, Security
from korvet.server.ground.settings import ListenerSettings
from tests.api.data import now_ms, records
from tests.oracle.batches import Batch, encode
from tests.oracle.messages import request_frame
from tests.oracle.versions import supported
from tests.support.broker import KorvetServer, running_broker
from tests.support.random_requests import Pool, random_values
from tests.support.tenants import (
    PASSWORD,
    WITHIN_S,
    Client,
    Closed,
    connected,
    create_tenant,
    korvet,
    make_topic,
    topics_of,
)

SEED = 20_170
ROUNDS = 3
SECRETS = ("secret-topic", "secret-group", "secret-txn", "secret-user", "secret-member")
SECRET = b"secret-record-and-assignment"
OFFSET = 0x5EC2E7_0FF5E7
"""A committed offset, whose bytes no answer may hold."""
NOT_CLIENTS = (b":frontends", b":@probe:")
RULES = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "korvet.sasl.plain.without.tls": "true",
    "super.users": "User:secret-operator",
    "sasl.oauthbearer.expected.issuer": "https://secret-issuer.example",
    "sasl.oauthbearer.expected.audience": "secret-audience",
    "max.connections.per.ip.overrides": "192.0.2.77:5",
    "listener.name.default.max.connections": "1234",
}
UNANSWERED = {"sasl_handshake", "sasl_authenticate"}
"""A login ends the connection; tests/server/test_tenants.py has these."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Victim:
    """What the victim has: the ids of its topics, its member and producer, and its cluster's id."""

    ids: tuple[UUID, UUID]
    member: str
    producer_id: int
    cluster_id: str


@pytest.fixture(scope="module")
def broker() -> Iterator[KorvetServer]:
    listener = ListenerSettings(
        port=0, namespace_from=NamespaceFrom.PRINCIPAL, security=Security.SASL_PLAINTEXT, sasl=("PLAIN",)
    )
    with running_broker(listeners=[listener], broker=RULES) as running:
        for name in ("attacker", "victim"):
            create_tenant(running, name, "--super-users", "User:alice")
        korvet(running, "users", "add", "secret-user", "--namespace", "victim", stdin=PASSWORD)
        yield running
        assert "Traceback" not in running.log


def furnish(
    client: Client, topic: str, group: str, transactional_id: str, offset: int, secret: bytes
) -> tuple[str, int]:
    """A topic with a record, a group with a member and an offset, and an open transaction; member and producer."""
    assert make_topic(client, topic) == "NONE"
    partition = [{"index": 0, "records": encode(Batch(count=1, value=secret, timestamp=now_ms()))}]
    client.ask("produce", 9, acks=-1, timeout=1000, topic_data=[{"name": topic, "partition_data": partition}],
               transactional_id=None)  # fmt: skip
    joining = {
        "group_id": group, "session_timeout": 600_000, "rebalance_timeout": 600_000, "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": b""}], "group_instance_id": None,
    }  # fmt: skip
    member = client.ask("join_group", 4, member_id="", **joining)["member_id"]
    joined = client.ask("join_group", 4, member_id=member, **joining)
    client.ask("sync_group", 3, group_id=group, generation_id=joined["generation_id"], member_id=member,
               assignments=[{"member_id": member, "assignment": secret}])  # fmt: skip
    topics = [{"name": topic, "partitions": [{"partition_index": 0, "committed_offset": offset}]}]
    client.ask("offset_commit", 8, group_id=group, member_id=member, topics=topics,
               generation_id_or_member_epoch=joined["generation_id"])  # fmt: skip
    begun = client.ask("init_producer_id", 4, transactional_id=transactional_id, transaction_timeout=600_000,
                       producer_id=-1, producer_epoch=-1)  # fmt: skip
    client.ask("add_partitions_to_txn", 3, v3_and_below_transactional_id=transactional_id,
               v3_and_below_producer_id=begun["producer_id"], v3_and_below_producer_epoch=begun["producer_epoch"],
               v3_and_below_topics=[{"name": topic, "partitions": [0]}])  # fmt: skip
    return str(member), int(begun["producer_id"])


@pytest.fixture(scope="module")
def victim(broker: KorvetServer) -> Victim:
    with connected(broker.port, login="alice@victim") as client:
        furnish(client, "secret-topic", "secret-group", "secret-txn", OFFSET, SECRET)
        member, producer_id = furnish(client, "orders", "readers", "writer", OFFSET, SECRET)
        names = [{"name": name} for name in ("orders", "secret-topic")]
        topics = {one["name"]: one["topic_id"] for one in client.ask("metadata", 12, topics=names)["topics"]}
        cluster_id = client.ask("describe_cluster", 1)["cluster_id"]
    with connected(broker.port, login="alice@attacker") as client:
        furnish(client, "orders", "readers", "writer", 1, b"own")
    ids = UUID(str(topics["orders"])), UUID(str(topics["secret-topic"]))
    return Victim(ids=ids, member=member, producer_id=producer_id, cluster_id=cluster_id)


def state(broker: KorvetServer) -> dict[bytes, Any]:
    """The victim's keys with their contents, but for the leases of front-ends."""
    with broker.redis() as client:
        keys = [key for key in client.scan_iter(match="korvet:{victim:*") if not any(one in key for one in NOT_CLIENTS)]
        return {key: client.dump(key) for key in keys}


def settled_state(broker: KorvetServer) -> dict[bytes, Any]:
    """`state`, once the work that follows the victim's own requests is done: it is the same three times in a row."""
    deadline = time.monotonic() + WITHIN_S
    found, same = state(broker), 1
    while same < 3:
        assert time.monotonic() < deadline
        time.sleep(1.5)
        before, found = found, state(broker)
        same = same + 1 if found == before else 1
    return found


def pool(victim: Victim) -> Pool:
    return Pool(
        names=("orders", "readers", "writer", "alice", "User:alice", "victim", "range", victim.member, "", "*",
               "kafka-cluster", "a:b", "{victim:orders:0}", "retention.ms", "1000", str(victim.producer_id)),
        ids=(*victim.ids, UUID(int=0)),
        numbers=(-1, 0, 1, 2, 3, victim.producer_id, OFFSET),
        batches=(records(1, 10), b""),
    )  # fmt: skip


def exchange(client: Client, frame: bytes) -> bytes:
    client.socket.settimeout(10)
    client.socket.sendall(frame)
    return client.frame()


def test_every_api_with_the_others_names_shows_and_changes_nothing_of_the_other(
    broker: KorvetServer, victim: Victim
) -> None:
    before = settled_state(broker)
    assert any(b"secret-topic" in key for key in before)
    rng, words = random.Random(SEED), pool(victim)
    hidden = [word.encode() for word in SECRETS] + [victim.cluster_id.encode(), SECRET]
    hidden += [victim.ids[1].bytes, OFFSET.to_bytes(8)]
    names = {key: api_key_map[key] for key in registry()}
    asked = [(name, version) for name in names.values() for version in supported(name)] * ROUNDS
    rng.shuffle(asked)
    client, answered = Client(broker.port), set()
    client.log_in("alice@attacker")
    for name, version in asked:
        if name in UNANSWERED:
            continue
        values = random_values(name, version, words, rng)
        frame = request_frame(name, version, values, 7)
        answer = b""
        with suppress(Closed, TimeoutError, ConnectionError):
            answer = exchange(client, frame)
            answered.add(name)
        shown = [one for one in hidden if one in answer and one not in frame]
        assert not shown, (name, version, values, shown)
        if not answer:
            client.socket.close()
            client = Client(broker.port)
            client.log_in("alice@attacker")
    client.socket.close()
    assert answered == set(names.values()) - UNANSWERED
    after = state(broker)
    assert [key for key in before.keys() | after.keys() if before.get(key) != after.get(key)] == []
    with connected(broker.port, login="alice@victim") as own:
        assert topics_of(own) == {"orders", "secret-topic"}
        groups = [{"group_id": "readers", "topics": None, "member_id": None, "member_epoch": -1}]
        (found,) = own.ask("offset_fetch", 8, groups=groups, require_stable=False)["groups"]
        assert found["topics"][0]["partitions"][0]["committed_offset"] == OFFSET


def test_lists_of_a_tenant_hold_its_own_alone(broker: KorvetServer, victim: Victim) -> None:
    with connected(broker.port, login="alice@attacker") as client:
        assert "secret-topic" not in topics_of(client)
        assert "secret-group" not in {one["group_id"] for one in client.ask("list_groups", 4)["groups"]}
        listed = client.ask("list_transactions", 0)["transaction_states"]
        assert "secret-txn" not in {one["transactional_id"] for one in listed}
        users = client.ask("describe_user_scram_credentials", 0, users=None)["results"]
        assert {one["user"] for one in users} == {"alice"}
        directories = client.ask("describe_log_dirs", 3, topics=None)["results"]
        assert "secret-topic" not in {topic["name"] for one in directories for topic in one["topics"]}
        resources = client.ask("list_config_resources", 1, resource_types=[])["config_resources"]
        assert not {one["resource_name"] for one in resources} & set(SECRETS)


def test_tenants_admin_reads_its_own_super_users_and_nothing_of_the_operator(broker: KorvetServer) -> None:
    with connected(broker.port, login="alice@attacker") as client:
        asked = [{"resource_type": 4, "resource_name": name, "configuration_keys": None} for name in ("1", "")]
        first, whole = client.ask("describe_configs", 4, resources=asked, include_synonyms=True)["results"]
        told = {one["name"]: one["value"] for one in first["configs"]}
        assert told["super.users"] == "User:alice"
        for word in ("secret-", "192.0.2.77", "1234", "listener.name."):
            assert word not in str(first) and word not in str(whole)
