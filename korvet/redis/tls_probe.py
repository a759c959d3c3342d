"""A probe for TLS: it tells whether the URL names TLS and the server has none, or the other way round.

A server without TLS takes a handshake for an unfinished command, and waits. A server with TLS cuts off a client that
begins without it.
"""

from __future__ import annotations

import ssl

import anyio

from korvet.redis.address import Address

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
    """Whether the server completes a TLS handshake, with any certificate."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    try:
        with anyio.fail_after(_TIMEOUT_S):
            async with await anyio.connect_tcp(*address, ssl_context=context, tls_standard_compatible=False):
                return True
    except (OSError, anyio.EndOfStream, anyio.BrokenResourceError):
        return False
