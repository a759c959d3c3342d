"""Whether a server that could not be talked to speaks TLS where it should not, or does not where it should.

A server without TLS takes a handshake for an unfinished command and waits; one with TLS cuts off who begins without.
"""

from __future__ import annotations

import asyncio
import ssl

import anyio

from korvet.store.address import Address

_TIMEOUT_S = 1.5


async def speaks_plainly(address: Address) -> bool:
    """Whether the server answers without TLS."""
    try:
        with anyio.fail_after(_TIMEOUT_S):
            async with await anyio.connect_tcp(*address) as stream:
                await stream.send(b"PING\r\n")
                return (await stream.receive(1))[:1] in (b"+", b"-")
    except (OSError, anyio.EndOfStream, anyio.BrokenResourceError):
        return False


async def speaks_tls(address: Address) -> bool:
    """Whether the server shakes hands over TLS, with whatever certificate."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    try:
        with anyio.fail_after(_TIMEOUT_S):
            transport, _ = await asyncio.get_running_loop().create_connection(asyncio.Protocol, *address, ssl=context)
    except OSError:
        return False
    transport.abort()
    return True
