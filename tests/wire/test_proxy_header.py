"""The PROXY protocol's header, with bytes alone. The cases follow HAProxy's doc/proxy-protocol.txt."""

from __future__ import annotations

import struct
from contextlib import suppress
from ipaddress import IPv4Address, IPv6Address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from korvet.errors import MalformedRequest
from korvet.wire.proxy_header import MAX_HEADER_BYTES, V2_BEGIN, ProxyHeader, client_tls, parse_proxy_header

TCP4 = b"PROXY TCP4 192.0.2.7 198.51.100.1 56324 9092\r\n"
ports = st.integers(0, 65535)


def v2(command: int, family: int, body: bytes, version: int = 2) -> bytes:
    return V2_BEGIN + struct.pack(">BBH", version << 4 | command, family, len(body)) + body


def v2_tcp(source: IPv4Address | IPv6Address, target: IPv4Address | IPv6Address, tlvs: bytes = b"") -> bytes:
    family = 0x11 if source.version == 4 else 0x21
    return v2(1, family, source.packed + target.packed + struct.pack(">HH", 56324, 9092) + tlvs)


def host_of(data: bytes) -> str | None:
    header = parse_proxy_header(data)
    assert header is not None
    assert header.size_bytes == len(data)
    return header.client_host


@given(source=st.ip_addresses(v=4), target=st.ip_addresses(v=4), ports=st.tuples(ports, ports), tlvs=st.binary())
def test_both_versions_name_an_ipv4_client(
    source: IPv4Address, target: IPv4Address, ports: tuple[int, int], tlvs: bytes
) -> None:
    assert host_of(b"PROXY TCP4 %s %s %d %d\r\n" % (*both(source, target), *ports)) == str(source)
    assert host_of(v2_tcp(source, target, tlvs)) == str(source)


@given(source=st.ip_addresses(v=6), target=st.ip_addresses(v=6), ports=st.tuples(ports, ports), tlvs=st.binary())
def test_both_versions_name_an_ipv6_client(
    source: IPv6Address, target: IPv6Address, ports: tuple[int, int], tlvs: bytes
) -> None:
    shown = str(source.ipv4_mapped or source)
    assert host_of(b"PROXY TCP6 %s %s %d %d\r\n" % (*both(source, target), *ports)) == shown
    assert host_of(v2_tcp(source, target, tlvs)) == shown


def both(source: IPv4Address | IPv6Address, target: IPv4Address | IPv6Address) -> tuple[bytes, bytes]:
    return str(source).encode(), str(target).encode()


def test_ipv4_client_of_an_ipv6_socket_stays_ipv4() -> None:
    assert host_of(b"PROXY TCP6 ::ffff:192.0.2.7 ::1 1 2\r\n") == "192.0.2.7"


@pytest.mark.parametrize(
    "header",
    [
        b"PROXY UNKNOWN\r\n",
        b"PROXY UNKNOWN ffff::1 ffff::2 65535 65535\r\n",
        v2(0, 0, b""),
        v2(0, 0x11, b"anything"),
        v2(1, 0, b""),
        v2(1, 0x31, b"/a/socket".ljust(216, b"\0")),
        v2(1, 0x12, IPv4Address("192.0.2.7").packed * 2 + bytes(4)),
    ],
    ids=["unknown", "unknown-with-more", "local", "local-with-more", "unspec", "unix", "datagram"],
)
def test_header_without_a_tcp_address_leaves_the_connections_own(header: bytes) -> None:
    assert host_of(header) is None


NOTHING = b"\4\0\1x"
WITH_TLV = v2_tcp(IPv4Address("192.0.2.7"), IPv4Address("198.51.100.1"), NOTHING)


@pytest.mark.parametrize(("header", "tlvs"), [(TCP4, b""), (WITH_TLV, NOTHING)])
def test_header_may_arrive_byte_by_byte_or_with_later_bytes(header: bytes, tlvs: bytes) -> None:
    for size in range(len(header)):
        assert parse_proxy_header(header[:size]) is None
    expected = ProxyHeader(size_bytes=len(header), client_host="192.0.2.7", target_port=9092, tlvs=tlvs)
    for more in (b"", b"\0\0\0\x10\r\n\r\n", header):
        assert parse_proxy_header(bytearray(header + more)) == expected


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"\0\0\0\x10\0\x12\0\4", "no PROXY protocol header, which this listener expects"),
        (b"PROXX", "no PROXY protocol header"),
        (b"\r\n\r\n\x00\r\nQUIX", "no PROXY protocol header"),
        (b"PROXY " + b"x" * 200, "a PROXY protocol line without an end within 107 bytes"),
        (b"PROXY UNKNOWN" + b" " * 94 + b"\r\n", "a PROXY protocol line without an end within 107 bytes"),
        (b"PROXY TCP4 192.0.2.7 198.51.100.1 56324\r\n", "a wrong PROXY protocol line: PROXY TCP4"),
        (b"PROXY TCP4 192.0.2.7 198.51.100.1 56324 65536\r\n", "a wrong PROXY protocol line"),
        (b"PROXY TCP4 192.0.2.7 198.51.100.1 +1 2\r\n", "a wrong PROXY protocol line"),
        (b"PROXY TCP4 ::1 ::1 1 2\r\n", "a wrong PROXY protocol line"),
        (b"PROXY TCP6 192.0.2.7 ::1 1 2\r\n", "a wrong PROXY protocol line"),
        (b"PROXY UDP4 192.0.2.7 192.0.2.8 1 2\r\n", "a wrong PROXY protocol line"),
        (b"PROXY \xff\x1b[31m\r\n", r"a wrong PROXY protocol line: PROXY \xff"),
        (v2(0, 0, b"", version=1), "a PROXY protocol header of version 1, command 0"),
        (v2(7, 0x11, b""), "a PROXY protocol header of version 2, command 7"),
        (v2(1, 0x11, bytes(11)), "a PROXY protocol header whose addresses end after 11 bytes"),
        (v2(1, 0x21, bytes(35)), "a PROXY protocol header whose addresses end after 35 bytes"),
        (v2(0, 0, bytes(MAX_HEADER_BYTES))[:16], "a PROXY protocol header of 16400 bytes; up to 16384 are taken"),
    ],
)
def test_bytes_that_are_no_header_are_refused_with_the_reason(data: bytes, reason: str) -> None:
    with pytest.raises(MalformedRequest) as caught:
        parse_proxy_header(data)
    assert reason in str(caught.value)
    assert str(caught.value).isprintable()


begun = st.sampled_from([b"", b"PROXY ", b"PROXY TCP4 ", b"PROXY TCP6 ", V2_BEGIN, V2_BEGIN + b"\x21\x11", TCP4])


@given(begin=begun, more=st.binary(max_size=300))
def test_any_bytes_are_a_header_or_its_beginning_or_refused(begin: bytes, more: bytes) -> None:
    data = begin + more
    try:
        header = parse_proxy_header(data)
    except MalformedRequest:
        return
    if header is None:
        assert len(data) < MAX_HEADER_BYTES
    else:
        assert header.size_bytes <= len(data)
        assert parse_proxy_header(data[: header.size_bytes]) == header
        assert parse_proxy_header(data[: header.size_bytes - 1]) is None


@given(st.binary(max_size=300))
def test_words_about_tls_are_read_or_refused(tlvs: bytes) -> None:
    with suppress(MalformedRequest):
        client_tls(ProxyHeader(size_bytes=0, tlvs=tlvs))
