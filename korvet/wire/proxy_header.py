"""The PROXY protocol's header, without I/O. A load balancer sends it before a client's bytes, to name the client.

HAProxy's doc/proxy-protocol.txt defines versions 1 (a line of text) and 2 (binary). A header without a TCP address
(UNKNOWN, LOCAL, UNSPEC, unix sockets, datagrams) leaves the connection its own address. Of the fields
after version 2's addresses (TLVs), `client_tls` reads those about the client's TLS.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address
from typing import NamedTuple

from korvet.errors import MalformedRequest

V1_BEGIN = b"PROXY "
V2_BEGIN = b"\r\n\r\n\x00\r\nQUIT\n"
MAX_V1_BYTES = 107
"""The longest header of version 1."""
MAX_HEADER_BYTES = 16 << 10
"""The longest accepted header: HAProxy's own buffer has this size, and its TLVs are far shorter."""

_read_v2 = struct.Struct(">BBH").unpack_from
_V2_FIXED_BYTES = 16
_LOCAL, _PROXY = 0, 1
_TCP4, _TCP6 = 0x11, 0x21
_TYPE_AUTHORITY, _TYPE_SSL, _SUBTYPE_CN = 0x02, 0x20, 0x22
_READ_TYPES = (_TYPE_AUTHORITY, _TYPE_SSL, _SUBTYPE_CN)
_CLIENT_SSL, _CLIENT_CERT = 1, 2 | 4
_SSL_FIXED_BYTES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyHeader:
    """A whole header: its length, the client's address, and the balancer's port to which the client connected.

    Address and port are None if the header names none; the connection's own then apply.
    """

    size_bytes: int
    client_host: str | None = None
    target_port: int | None = None
    is_local: bool = False
    """True if the balancer connects for itself, as for health checks."""
    tlvs: bytes = b""
    """The TLVs after the addresses of version 2, for `client_tls`."""


class ClientTls(NamedTuple):
    """A load balancer's report of the TLS connection that it terminated.

    ``authority`` is the server name that the client sent. ``is_verified`` is true if the balancer verified the client's
    certificate.
    """

    is_tls: bool
    is_verified: bool
    common_name: str | None
    authority: str | None


def client_tls(header: ProxyHeader) -> ClientTls:
    """The client's TLS connection, by the header's PP2_TYPE_SSL and PP2_TYPE_AUTHORITY.

    :raises MalformedRequest: these do not fit their lengths, repeat, or hold no text.
    """
    values = _tlvs(header.tlvs)
    about = values.get(_TYPE_SSL)
    authority = _text_of(values, _TYPE_AUTHORITY)
    if about is None:
        return ClientTls(is_tls=False, is_verified=False, common_name=None, authority=authority)
    if len(about) < _SSL_FIXED_BYTES:
        raise MalformedRequest(f"a PROXY protocol header whose TLS part has {len(about)} bytes")
    client, verify = about[0], int.from_bytes(about[1:_SSL_FIXED_BYTES])
    return ClientTls(
        is_tls=bool(client & _CLIENT_SSL),
        is_verified=bool(client & _CLIENT_CERT) and verify == 0,
        common_name=_text_of(_tlvs(about[_SSL_FIXED_BYTES:]), _SUBTYPE_CN),
        authority=authority,
    )


def _tlvs(data: bytes) -> dict[int, bytes]:
    """Type -> value."""
    found: dict[int, bytes] = {}
    while data:
        size = int.from_bytes(data[1:3])
        if len(data) < 3 + size:
            raise MalformedRequest("a PROXY protocol header whose parts end too early")
        if data[0] in found and data[0] in _READ_TYPES:
            raise MalformedRequest(f"a PROXY protocol header with two parts of type {data[0]}")
        found[data[0]], data = data[3 : 3 + size], data[3 + size :]
    return found


def _text_of(found: dict[int, bytes], of: int) -> str | None:
    try:
        return found[of].decode() if of in found else None
    except UnicodeDecodeError:
        raise MalformedRequest(f"a PROXY protocol header whose part of type {of} is no UTF-8") from None


def parse_proxy_header(data: bytes | bytearray) -> ProxyHeader | None:
    """The header at the start of ``data``; None while it is incomplete.

    :raises MalformedRequest: as soon as ``data`` cannot begin with a header; the text has the reason.
    """
    if data.startswith(V1_BEGIN):
        return _parse_v1(bytes(data[:MAX_V1_BYTES]))
    if data.startswith(V2_BEGIN):
        return _parse_v2(data)
    if V1_BEGIN.startswith(data) or V2_BEGIN.startswith(data):
        return None
    raise MalformedRequest(
        "no PROXY protocol header, which this listener expects: connect through the load balancer, let that send one "
        "(HAProxy: send-proxy-v2), or serve without proxy-protocol"
    )


def _parse_v1(data: bytes) -> ProxyHeader | None:
    line, end, _ = data.partition(b"\r\n")
    if not end:
        if len(data) >= MAX_V1_BYTES:
            raise MalformedRequest(f"a PROXY protocol line without an end within {MAX_V1_BYTES} bytes")
        return None
    size_bytes = len(line) + len(end)
    match line.split(b" "):
        case [_, b"UNKNOWN", *_]:
            return ProxyHeader(size_bytes=size_bytes)
        case [_, b"TCP4" | b"TCP6" as family, source, target, source_port, target_port]:
            if _is_port(source_port) and _is_port(target_port) and _host(family, target) is not None:
                host = _host(family, source)
                if host is not None:
                    return ProxyHeader(size_bytes=size_bytes, client_host=host, target_port=int(target_port))
    raise MalformedRequest(f"a wrong PROXY protocol line: {str(line)[2:-1]}")


def _is_port(text: bytes) -> bool:
    return text.isdigit() and len(text) <= 5 and int(text) < 1 << 16


def _host(family: bytes, text: bytes) -> str | None:
    try:
        return (
            str(IPv4Address(text.decode("ascii"))) if family == b"TCP4" else _shown(IPv6Address(text.decode("ascii")))
        )
    except ValueError:
        return None


def _shown(address: IPv6Address) -> str:
    """The address as text; an IPv4 client of an IPv6 socket is shown as IPv4."""
    return str(address.ipv4_mapped or address)


def _parse_v2(data: bytes | bytearray) -> ProxyHeader | None:
    if len(data) < _V2_FIXED_BYTES:
        return None
    version_and_command, family, length = _read_v2(data, len(V2_BEGIN))
    version, command = version_and_command >> 4, version_and_command & 15
    if version != 2 or command not in (_LOCAL, _PROXY):
        raise MalformedRequest(f"a PROXY protocol header of version {version}, command {command}")
    size_bytes = _V2_FIXED_BYTES + length
    if size_bytes > MAX_HEADER_BYTES:
        raise MalformedRequest(f"a PROXY protocol header of {size_bytes} bytes; up to {MAX_HEADER_BYTES} are taken")
    if len(data) < size_bytes:
        return None
    if command == _LOCAL:
        return ProxyHeader(size_bytes=size_bytes, is_local=True)
    if family not in (_TCP4, _TCP6):
        return ProxyHeader(size_bytes=size_bytes)
    content = bytes(data[_V2_FIXED_BYTES:size_bytes])
    host, port = _v2_addresses(family, content)
    tlvs = content[12 if family == _TCP4 else 36 :]
    return ProxyHeader(size_bytes=size_bytes, client_host=host, target_port=port, tlvs=tlvs)


def _v2_addresses(family: int, addresses: bytes) -> tuple[str, int]:
    """The source's host and the target's port. The header has both hosts first, and then both ports."""
    width = 4 if family == _TCP4 else 16
    if len(addresses) < 2 * (width + 2):
        raise MalformedRequest(f"a PROXY protocol header whose addresses end after {len(addresses)} bytes")
    source, port = addresses[:width], int.from_bytes(addresses[2 * width + 2 : 2 * width + 4])
    return str(IPv4Address(source)) if family == _TCP4 else _shown(IPv6Address(source)), port
