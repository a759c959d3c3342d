"""Tenants that clients choose by the server name of their TLS connection, also through a load balancer."""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
from typing import Any

import aiokafka
import pytest

from korvet.wire.proxy_header import V2_BEGIN
from tests.server.choosing import BOTH, PASSED, SNI, TERMINATED
from tests.support.broker import KorvetServer
from tests.support.haproxy import running_haproxy
from tests.support.tenants import PASSWORD, WITHIN_S, connected, make_topic, topics_of


@pytest.fixture(scope="module")
def broker(tenants_broker: KorvetServer) -> KorvetServer:
    return tenants_broker


@pytest.mark.parametrize(
    ("server_name", "name", "error"),
    [
        ("b1-acme.kafka.example", "alice@acme", "NONE"),
        (None, "alice@acme", "NONE"),
        ("b1-globex.kafka.example", "alice@acme", "SASL_AUTHENTICATION_FAILED"),
        ("b1-nobodys.kafka.example", "alice@acme", "SASL_AUTHENTICATION_FAILED"),
    ],
)
def test_server_name_and_login_must_agree(
    broker: KorvetServer, context: ssl.SSLContext, server_name: str | None, name: str, error: str
) -> None:
    with connected(broker.ports[BOTH], server_name, context) as client:
        assert client.log_in(name)["error_code"] == error


def test_server_name_chooses_the_namespace_and_its_clients_get_its_host_names(
    broker: KorvetServer, context: ssl.SSLContext
) -> None:
    for namespace, topic in (("acme", "of-acme"), ("globex", "of-globex")):
        with connected(broker.ports[SNI], f"b0-{namespace}.kafka.example", context, login="alice") as client:
            assert make_topic(client, topic) == "NONE"
            answer = client.ask("metadata", 12, topics=None)
            assert {"of-acme", "of-globex"} & {one["name"] for one in answer["topics"]} == {topic}
            hosts = {one["node_id"]: (one["host"], one["port"]) for one in answer["brokers"]}
            assert hosts == {node: (f"b{node}-{namespace}.kafka.example", 9093) for node in range(1, 7)}


def test_group_is_listed_by_the_node_whose_name_the_client_used(broker: KorvetServer, context: ssl.SSLContext) -> None:
    port, found = broker.ports[SNI], []
    with connected(port, "b0-acme.kafka.example", context, login="alice") as client:
        topics = [{"name": "orders", "partitions": [{"partition_index": 0, "committed_offset": 0}]}]
        make_topic(client, "orders")
        client.ask("offset_commit", 8, group_id="listed", generation_id_or_member_epoch=-1, member_id="", topics=topics)
    for node in range(7):
        with connected(port, f"b{node}-acme.kafka.example", context, login="alice") as client:
            groups = client.ask("list_groups", 4)["groups"]
            found += [node] if "listed" in {group["group_id"] for group in groups} else []
    assert found[0] == 0 and len(found) == 2


@pytest.mark.parametrize(
    "server_name", ["b1-nobodys.kafka.example", "acme.kafka.example", "b1-fixed.kafka.example", None]
)
def test_unknown_server_name_looks_as_a_wrong_password_does(
    broker: KorvetServer, context: ssl.SSLContext, server_name: str | None
) -> None:
    with connected(broker.ports[SNI], server_name, context) as client:
        refused = client.log_in("alice")
        assert client.is_closed()
    with connected(broker.ports[SNI], "b1-acme.kafka.example", context) as client:
        assert client.log_in("alice", "wrong") == refused


def test_haproxy_that_passes_tls_on_leaves_the_choice_to_the_server_name(
    broker: KorvetServer, context: ssl.SSLContext
) -> None:
    with running_haproxy([broker.ports[PASSED]], proxy="check-ssl verify none") as haproxy:
        haproxy.wait_until_up()
        for namespace in ("acme", "globex"):
            name = f"through-{namespace}"
            with connected(haproxy.port, f"b0-{namespace}.kafka.example", context, login="alice") as client:
                assert make_topic(client, name) == "NONE"
                assert {one for one in topics_of(client) if one.startswith("through-")} == {name}
        with connected(haproxy.port, "b0-nobodys.kafka.example", context) as client:
            assert client.log_in("alice")["error_code"] == "SASL_AUTHENTICATION_FAILED"


@pytest.mark.parametrize(
    ("server_name", "error"),
    [(b"b2-acme.kafka.example", "NONE"), (b"b2-nobodys.kafka.example", "SASL_AUTHENTICATION_FAILED"),
     (b"", "SASL_AUTHENTICATION_FAILED")],
)  # fmt: skip
def test_load_balancer_where_tls_ended_passes_the_server_name(
    broker: KorvetServer, server_name: bytes, error: str
) -> None:
    over_tls = struct.pack(">BHBI", 0x20, 5, 1, 0)
    named = struct.pack(">BH", 2, len(server_name)) + server_name if server_name else b""
    addresses = bytes(8) + struct.pack(">HH", 50000, 9093)
    told = addresses + over_tls + named
    with connected(broker.ports[TERMINATED]) as client:
        client.socket.sendall(V2_BEGIN + b"\x21\x11" + struct.pack(">H", len(told)) + told)
        assert client.log_in("alice")["error_code"] == error
        if error == "NONE":
            brokers = client.ask("metadata", 12, topics=[])["brokers"]
            assert {one["host"] for one in brokers} == {f"b{node}-acme.kafka.example" for node in range(1, 7)}


def test_aiokafka_finds_its_tenant_by_host_names_alone(
    broker: KorvetServer, context: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    port, find = broker.ports[SNI], socket.getaddrinfo

    def resolve(host: Any, *args: Any, **more: Any) -> Any:
        # All host names of the tenants lead to this broker, as its DNS would say.
        return find("127.0.0.1", port, *args[1:], **more) if "kafka.example" in str(host) else find(host, *args, **more)

    async def round_trip(namespace: str) -> None:
        login: dict[str, Any] = {
            "bootstrap_servers": f"b0-{namespace}.kafka.example:9093", "security_protocol": "SASL_SSL",
            "sasl_mechanism": "SCRAM-SHA-256", "sasl_plain_username": "alice", "sasl_plain_password": PASSWORD,
            "ssl_context": context,
        }  # fmt: skip
        async with aiokafka.AIOKafkaProducer(**login) as producer:
            await producer.send_and_wait("by-name", f"of {namespace}".encode())
        consumer = aiokafka.AIOKafkaConsumer("by-name", group_id="g", auto_offset_reset="earliest", **login)
        async with consumer:
            record = await asyncio.wait_for(consumer.getone(), WITHIN_S)
            assert record.value == f"of {namespace}".encode() and record.offset == 0

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    for namespace in ("acme", "globex"):
        asyncio.run(round_trip(namespace))
