"""Opening, watching and closing connections to a Redis server."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import anyio

from korvet.errors import StoreError, StoreUnavailable
from korvet.redis.address import Address
from korvet.redis.error_replies import A_REPLICA, NO_TLS_THERE, TLS_THERE, why_closed
from korvet.redis.resp import Connection, Owner, pack_command

_PROBE_S = 1.5
"""Seconds to wait: a server without TLS takes the handshake for an incomplete command, and never answers."""


SILENCE_LIMIT_S = 15.0
_TLS_HANDSHAKE_S = 3.0
_GOODBYE_S = 1.0
_NEVER_AGAIN = 1_000
"""A number of attempts so high that the link does not load the library for this call."""
_CONNECTED = pack_command(("FCALL_RO", "korvet_connected", 0))
_UNIX_BUFFER_BYTES = 1 << 20
"""The send buffer requested for a unix socket: a large batch then takes fewer writes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Login:
    """The login of every connection: the source of AUTH's arguments, the database, and TLS."""

    auth: Callable[[], tuple[str, ...]] = tuple
    db: int = 0
    tls: ssl.SSLContext | None = None


async def connect(
    owner: Owner, address: Address, login: Login, name: str, *, is_first: bool
) -> tuple[Connection, dict[str, str]]:
    """Connect and log in; returns the connection, and the fields of the server's INFO.

    :param is_first: true before any connection succeeded: the URL's scheme may then be wrong about TLS.
    :raises OSError: the server cannot be reached, or TLS fails.
    :raises StoreError: the server refuses the login, the password cannot be read, or the URL's scheme is wrong.
    :raises StoreUnavailable: the connection is lost, or the server is a replica.
    """
    may_be_misnamed = is_first and bool(address.port)
    try:
        connection = await _open(owner, address, login.tls)
    except OSError:
        if may_be_misnamed and login.tls and await speaks_plainly(address):
            raise StoreError(NO_TLS_THERE) from None
        raise
    try:
        server = await _shake_hands(connection, login, name)
    except StoreUnavailable as error:
        connection.abort()
        if may_be_misnamed and not login.tls and await speaks_tls(address):
            raise StoreError(TLS_THERE) from None
        raise why_closed(error, connection) from None
    except BaseException:
        connection.abort()
        raise
    if server.get("role") == "slave":
        connection.abort()
        raise StoreUnavailable(A_REPLICA)
    return connection, server


async def _open(owner: Owner, address: Address, tls: ssl.SSLContext | None) -> Connection:
    """Connect to a server over TCP, TLS or a unix socket."""
    loop = asyncio.get_running_loop()
    if not address.port:
        transport, connection = await loop.create_unix_connection(lambda: Connection(owner), address.host)
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _UNIX_BUFFER_BYTES)
    else:
        patience_s = _TLS_HANDSHAKE_S if tls else None
        _, connection = await loop.create_connection(
            lambda: Connection(owner), *address, ssl=tls, ssl_handshake_timeout=patience_s
        )
    return connection


async def _shake_hands(connection: Connection, login: Login, name: str) -> dict[str, str]:
    """Log in; returns the fields of INFO on the server, its replication and its cluster."""
    owed = []
    if auth := login.auth():
        owed.append(connection.command("AUTH", *auth))
    if login.db:
        owed.append(connection.command("SELECT", login.db))
    owed.append(connection.command("CLIENT", "SETNAME", f"korvet-{name}"))
    info = connection.command("INFO", "server", "replication", "cluster")
    connected: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    connection.send(connected, _CONNECTED, _NEVER_AGAIN)
    for reply in owed:
        await reply
    lines = (await info).decode().splitlines()
    # A server without the library has no state that `korvet_connected` could reset.
    with suppress(StoreError, StoreUnavailable):
        await connected
    return {field: value.strip() for field, found, value in (line.partition(":") for line in lines) if found}


async def watch(connection: Connection) -> None:
    """Return when the connection is lost, and abort it if the server owes replies for `SILENCE_LIMIT_S`.

    Pings an idle connection. A subscriber needs the pings: its server owes no other reply, and readers at the end of a
    log rely on its silence.
    """
    loop = asyncio.get_running_loop()
    while not connection.closed.done():
        with anyio.move_on_after(SILENCE_LIMIT_S / 3):
            await asyncio.shield(connection.closed)
        silent_since = connection.silent_since
        if silent_since is not None and loop.time() - silent_since > SILENCE_LIMIT_S:
            connection.abort()
        elif not connection.closed.done():
            connection.ping()


async def close_connection(connection: Connection) -> None:
    """Close a connection, and over TLS wait at most a second for the server's close_notify."""
    connection.close()
    with anyio.CancelScope(shield=True):
        with anyio.move_on_after(_GOODBYE_S):
            await asyncio.shield(connection.closed)
        if not connection.closed.done():
            connection.abort()
            await connection.closed


async def speaks_plainly(address: Address) -> bool:
    """True if the server answers without TLS. A server with TLS disconnects such a client."""
    try:
        with anyio.fail_after(_PROBE_S):
            async with await anyio.connect_tcp(*address) as stream:
                await stream.send(b"PING\r\n")
                return (await stream.receive(1))[:1] in (b"+", b"-")
    except (OSError, anyio.EndOfStream, anyio.BrokenResourceError):
        return False


async def speaks_tls(address: Address) -> bool:
    """True if the server completes a TLS handshake, with any certificate."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    try:
        with anyio.fail_after(_PROBE_S):
            async with await anyio.connect_tcp(*address, ssl_context=context, tls_standard_compatible=False):
                return True
    except (OSError, anyio.EndOfStream, anyio.BrokenResourceError):
        return False
