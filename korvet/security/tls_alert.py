"""The alert that ends a failed TLS handshake and gives the client the reason.

Event loops drop it. Under TLS 1.3 the client has by then finished its part, so it would see the connection end for no
reason, and retry for ever.
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
