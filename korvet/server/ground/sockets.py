"""Listening sockets: one for a process, or one for each worker on the same port; and the address of a client."""

from __future__ import annotations

import asyncio
import fcntl
import select
import socket
import sys
import termios
from collections.abc import Sequence
from typing import Final

from korvet.errors import ConfigError
from korvet.server.ground.settings import shown_address

_SIZE_BYTES: Final = 4
"""The bytes of the size before each frame."""


def bind(host: str, port: int, *, shared: bool = False) -> socket.socket:
    """A bound socket that does not listen yet; ``shared`` lets other sockets take the same port (SO_REUSEPORT).

    :raises ConfigError: if the address is in use, or not an address of this machine.
    """
    family, kind, protocol, _, address = _resolve(host, port)
    bound = socket.socket(family, kind, protocol)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        bound.bind(address)
        bound.setblocking(False)
    except OSError as error:
        bound.close()
        raise ConfigError(
            f"cannot listen on {shown_address(host, port)}: {(error.strerror or str(error)).lower()}"
        ) from None
    return bound


def reserve(host: str, port: int) -> socket.socket:
    """Hold a port for workers to share. This socket does not listen, so it gets no connections.

    :raises ConfigError: if another process listens there, which SO_REUSEPORT alone would not notice.
    """
    with bind(host, port) as probe:
        if port:
            _check_free(probe, host, port)
        port = port_of(probe)
    return bind(host, port, shared=True)


def _check_free(probe: socket.socket, host: str, port: int) -> None:
    try:
        probe.listen(1)
    except OSError as error:
        raise ConfigError(
            f"cannot listen on {shown_address(host, port)}: {(error.strerror or str(error)).lower()}"
        ) from None


def port_of(bound: socket.socket) -> int:
    """The port of a bound socket."""
    return int(bound.getsockname()[1])


def ports_of(bound: Sequence[socket.socket]) -> list[int]:
    """The ports of bound sockets."""
    return [port_of(one) for one in bound]


def _resolve(host: str, port: int) -> tuple[int, int, int, str, tuple[str, int] | tuple[str, int, int, int]]:
    try:
        found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except socket.gaierror as error:
        raise ConfigError(f"cannot listen on {shown_address(host, port)}: {error.strerror}") from None
    return found[0]  # type: ignore[return-value]


def peer_of(transport: asyncio.Transport) -> str:
    """The address of a connection's client; empty if the client has left already.

    An IPv4 address stays one on a listener for IPv4 and IPv6, too.
    """
    peer = transport.get_extra_info("peername")
    return host_of(peer) if peer else ""


def port_of_peer(transport: asyncio.Transport) -> int | None:
    """The port of a connection's client; None if the client has left already."""
    peer = transport.get_extra_info("peername")
    return int(peer[1]) if peer else None


def host_of(peer: Sequence[str | int]) -> str:
    """The host of a peer's address, as `peer_of` has it."""
    host = str(peer[0])
    return host.removeprefix("::ffff:") if "." in host else host


def has_left(transport: asyncio.Transport, begun: bytes) -> bool:
    """True if the client has closed the connection, and no whole request is left unread.

    Under TLS unread bytes cannot be judged, so a client has left only once everything is read.

    :param begun: the bytes that were read and belong to no request yet.
    """
    connected = transport.get_extra_info("socket")
    if connected is None or connected.fileno() < 0:
        return True
    try:
        # The transport's own socket object may not be read.
        with socket.fromfd(connected.fileno(), connected.family, connected.type) as peeked:
            head = peeked.recv(_SIZE_BYTES, socket.MSG_PEEK | socket.MSG_DONTWAIT)
            if head and (transport.get_extra_info("ssl_object") is not None or not _is_closed_by_peer(peeked)):
                return False
            return not _has_frame(begun + head, len(begun) + _unread_bytes(peeked))
    except BlockingIOError:
        return False
    except OSError:
        return True


def _is_closed_by_peer(connected: socket.socket) -> bool:
    """True if the peer has closed its sending side while bytes are unread; known on Linux only."""
    closed = getattr(select, "POLLRDHUP", 0)
    look = select.poll()
    look.register(connected, closed)
    return any(events & closed for _, events in look.poll(0))


def _unread_bytes(connected: socket.socket) -> int:
    return int.from_bytes(fcntl.ioctl(connected, termios.FIONREAD, bytes(4)), sys.byteorder)


def _has_frame(head: bytes, count: int) -> bool:
    """True if so many bytes, beginning with these, contain a whole frame."""
    size = int.from_bytes(head[:_SIZE_BYTES], "big", signed=True)
    return len(head) >= _SIZE_BYTES and count >= _SIZE_BYTES + size
