"""Clients behind a load balancer: the front-end knows their addresses, and logs one line for a wrong header."""

from __future__ import annotations

import re
import socket
import struct
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from korvet.server.ground.settings import ListenerSettings
from korvet.wire.proxy_header import V2_BEGIN
from tests.oracle.messages import parse_answer, request_frame
from tests.support.broker import KorvetServer, running_broker
from tests.support.waiting import until
from tests.support.wire import request

WITHIN_S = 20.0
API_VERSIONS = request(18, 0, 42)
V1 = b"PROXY TCP4 192.0.2.7 198.51.100.1 56324 9092\r\n"
V1_IPV6 = b"PROXY TCP6 2001:db8::7 2001:db8::1 56324 9092\r\n"
V2 = V2_BEGIN + b"\x21\x11\x00\x0c\xc0\x00\x02\x08\xc6\x33\x64\x01\xdc\x04\x23\x84"
V2_WITH_TLVS = V2_BEGIN + b"\x21\x11\x00\x10\xc0\x00\x02\x09\xc6\x33\x64\x01\xdc\x04\x23\x84" + b"\x04\x00\x01\x00"
UNKNOWN = b"PROXY UNKNOWN\r\n"
LOCAL = V2_BEGIN + b"\x20\x00\x00\x00"
PROFILE = settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@pytest.fixture(scope="module")
def server() -> Iterator[KorvetServer]:
    """A broker with a listener behind a balancer and one without, each with a namespace."""
    doors = (ListenerSettings(port=0, proxy_protocol=True), ListenerSettings(port=0, namespace="plain"))
    with running_broker(listeners=doors, broker={"group.initial.rebalance.delay.ms": "0"}) as broker:
        yield broker
        assert broker.is_running
        assert "Traceback" not in broker.log


def connect(server: KorvetServer, door: int = 0) -> socket.socket:
    client = socket.create_connection(("127.0.0.1", server.ports[door]), WITHIN_S)
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return client


def answer(client: socket.socket) -> bytes:
    size = client.recv(4, socket.MSG_WAITALL)
    assert len(size) == 4, "the server closed the connection"
    return client.recv(int.from_bytes(size, "big"), socket.MSG_WAITALL)


def is_closed(client: socket.socket) -> bool:
    try:
        return client.recv(1) == b""
    except ConnectionResetError:
        return True


def ask(client: socket.socket, api: str, version: int, **values: Any) -> Any:
    client.sendall(request_frame(api, version, values, 7))
    return parse_answer(api, version, answer(client), 7)


def join(client: socket.socket, group: str, member: str = "") -> Any:
    protocols = [{"name": "range", "metadata": b""}]
    times = {"session_timeout": 30_000, "rebalance_timeout": 60_000}
    values = {"group_id": group, "member_id": member, "protocol_type": "consumer", "protocols": protocols, **times}
    return ask(client, "join_group", 9, **values)


@pytest.mark.parametrize(
    ("header", "host"),
    [
        (V1, "192.0.2.7"),
        (V1_IPV6, "2001:db8::7"),
        (V2, "192.0.2.8"),
        (V2_WITH_TLVS, "192.0.2.9"),
        (UNKNOWN, "127.0.0.1"),
    ],
    ids=["v1", "v1-ipv6", "v2", "v2-with-tlvs", "unknown"],
)  # fmt: skip
def test_group_shows_its_members_own_address(server: KorvetServer, header: bytes, host: str) -> None:
    group = f"group-of-{host}"
    with connect(server) as client:
        client.sendall(header)
        member = join(client, group)["member_id"]
        assert join(client, group, member)["error_code"] == "NONE"
        (described,) = ask(client, "describe_groups", 5, groups=[group])["groups"]
        assert [one["client_host"] for one in described["members"]] == [f"/{host}"]


@pytest.mark.parametrize("header", [V1, V2_WITH_TLVS, LOCAL], ids=["v1", "v2", "local"])
def test_header_may_arrive_in_any_pieces_together_with_requests(server: KorvetServer, header: bytes) -> None:
    everything = header + API_VERSIONS
    for cut in (1, 5, 12, 15, 16, 17, len(header) - 1, len(header), len(header) + 1, len(everything)):
        with connect(server) as client:
            client.sendall(everything[:cut])
            client.sendall(everything[cut:])
            assert answer(client)[:4] == struct.pack(">i", 42)
    with connect(server) as client:
        for at in range(len(everything)):
            client.sendall(everything[at : at + 1])
        assert answer(client)[:4] == struct.pack(">i", 42)


def test_frame_larger_than_a_read_follows_the_header(server: KorvetServer) -> None:
    with connect(server) as client:
        client.sendall(V2 + request(18, 0, 41, body=bytes(300_000)) + API_VERSIONS)
        assert [answer(client)[:4] for _ in range(2)] == [struct.pack(">i", number) for number in (41, 42)]


def test_log_lines_name_the_client_and_not_the_balancer(server: KorvetServer) -> None:
    with connect(server) as client:
        client.sendall(V1.replace(b"192.0.2.7", b"192.0.2.77") + b"\xff\xff\xff\xff")
        assert is_closed(client)
    until(lambda: "client=192.0.2.77" in plain(server.log), "the line is there")


def plain(log: str) -> str:
    """A log without colours."""
    return re.sub(r"\x1b\[\d*m", "", log)


def test_connection_without_a_header_is_refused_with_advice_in_the_log(server: KorvetServer) -> None:
    with connect(server) as client:
        client.sendall(API_VERSIONS)
        assert is_closed(client)
    until(lambda: "connect through the load balancer" in server.log, "the line is there")


@pytest.mark.parametrize("header", [V1, V2], ids=["v1", "v2"])
def test_header_at_a_plain_listener_is_refused(server: KorvetServer, header: bytes) -> None:
    count = server.log.count("a PROXY protocol header, which only a listener with proxy-protocol takes")
    with connect(server, door=1) as client:
        client.sendall(header + API_VERSIONS)
        assert is_closed(client)
    until(
        lambda: server.log.count("a PROXY protocol header, which only a listener with proxy-protocol takes") > count,
        "the line is there",
    )


def test_health_checks_leave_no_line(server: KorvetServer) -> None:
    before = server.log
    for sent in (b"", LOCAL, b"", LOCAL, V2):
        with connect(server) as client:
            client.sendall(sent)
    for reset in (b"", LOCAL):
        with connect(server) as client:
            client.sendall(reset)
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    with connect(server) as client:
        client.sendall(V2 + API_VERSIONS)
        answer(client)
    assert server.log == before


def test_header_that_never_ends_times_out(server: KorvetServer) -> None:
    with connect(server) as silent, connect(server) as slow:
        slow.sendall(V2[:20])
        assert is_closed(silent)
        assert is_closed(slow)
    until(lambda: "a PROXY protocol header that ends after 20 bytes" in server.log, "the line is there")


def test_drain_does_not_wait_for_headers() -> None:
    with running_broker(proxy_protocol=True) as broker, connect(broker) as client:
        client.sendall(V2[:20])
        stopping = threading.Thread(target=broker.stop)
        stopping.start()
        assert is_closed(client)
        stopping.join()
        assert "cut off" not in broker.log


@PROFILE
@given(
    begin=st.sampled_from([b"", V1, V1[:20], V2, V2[:14], LOCAL, b"PROXY "]),
    more=st.binary(max_size=100),
    cut=st.integers(0, 200),
)
def test_any_bytes_are_answered_or_refused(server: KorvetServer, begin: bytes, more: bytes, cut: int) -> None:
    data = begin + more
    with connect(server) as client:
        try:
            client.sendall(data[:cut])
            client.sendall(data[cut:])
            client.shutdown(socket.SHUT_WR)
        except OSError:
            pass
        else:
            while not is_closed(client):
                pass
    with connect(server) as client:
        client.sendall(V2 + API_VERSIONS)
        assert answer(client)[:4] == struct.pack(">i", 42)
