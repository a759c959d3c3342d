"""The alert with which a failed TLS handshake ends: it tells the client why.

Event loops drop it. Under TLS 1.3 a client has then finished its own part. So it would see a connection that ends for
no reason, and try again and again.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

_caught: ContextVar[bytearray | None] = ContextVar("alert of a TLS handshake", default=None)


class Session(ssl.SSLObject):
    """A session that hands over the alert."""

    outgoing: ssl.MemoryBIO
    caught: bytearray | None

    def do_handshake(self) -> None:
        try:
            super().do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except ssl.SSLError:
            if self.caught is not None:
                self.caught += self.outgoing.read()
            raise


class AlertingContext(ssl.SSLContext):
    """A context whose handshakes hand over their alerts (`alert_caught`)."""

    sslobject_class = Session

    def wrap_bio(self, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO, *args: Any, **more: Any) -> Session:
        session = super().wrap_bio(incoming, outgoing, *args, **more)
        assert isinstance(session, Session)
        session.outgoing, session.caught = outgoing, _caught.get()
        return session


@contextmanager
def alert_caught() -> Iterator[bytearray]:
    """The bytes of the alert, once the handshake that begins in the block has failed."""
    alert = bytearray()
    token = _caught.set(alert)
    try:
        yield alert
    finally:
        _caught.reset(token)
