"""A listener's certificates: the TLS context for new handshakes, made anew when the files change.

A handshake takes the context of its time, and a connection keeps it. Files that cannot be used change nothing: the
context before stays, and one log line tells why. A new pair is often written in two steps, so changed files are read
when they have stayed the same for one look.
"""

from __future__ import annotations

import os
import ssl
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

import anyio
import anyio.to_thread
import structlog

from korvet.errors import ConfigError
from korvet.security.protocol import ClientAuth
from korvet.security.tls_alert import AlertingContext, Session

log = structlog.get_logger()

_LOOK_S: Final = 2.0
_MAX_FILE_BYTES: Final = 8 << 20
_ASKED: Final = "korvet_asked_name"
"""The attribute of a session that holds the server name."""
_FIRST: Final = "korvet_first_context"
_MODES: Final = {
    ClientAuth.NONE: ssl.CERT_NONE,
    ClientAuth.REQUESTED: ssl.CERT_OPTIONAL,
    ClientAuth.REQUIRED: ssl.CERT_REQUIRED,
}

Stamp = tuple[tuple[int, ...], ...]


class TlsFiles(NamedTuple):
    """The files of a listener, in PEM. ``client_ca`` holds the authorities of clients' certificates."""

    cert: str
    key: str
    client_ca: str | None = None
    client_auth: ClientAuth = ClientAuth.NONE

    @property
    def paths(self) -> tuple[str, ...]:
        return (self.cert, self.key) if self.client_ca is None else (self.cert, self.key, self.client_ca)


class _Unresumed(AlertingContext):
    """A context whose sessions cannot be resumed, because a resumed session shows no certificate again.

    Without tickets TLS 1.3 has nothing to resume. OpenSSL keeps sessions of TLS 1.2 in the context in which their
    handshakes began, and Python cannot turn that off. So each handshake begins in a context of its own. The server
    name, with or without one in the handshake, is the place where it goes on in this one.
    """

    def wrap_bio(self, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO, *args: Any, **more: Any) -> Session:
        first = _restricted(AlertingContext(ssl.PROTOCOL_TLS_SERVER), self.verify_mode)
        first.sni_callback = self._go_on
        session = first.wrap_bio(incoming, outgoing, *args, **more)
        # OpenSSL keeps the first context as long as the session, and its callback with it.
        setattr(session, _FIRST, first)
        return session

    def _go_on(self, session: ssl.SSLSocket | ssl.SSLObject, name: str | None, first: ssl.SSLContext) -> None:
        session.context = self
        _note_server_name(session, name, first)


def _restricted(context: AlertingContext, mode: ssl.VerifyMode) -> AlertingContext:
    """A context with what holds for every handshake of a listener; without tickets if clients show certificates."""
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION | ssl.OP_CIPHER_SERVER_PREFERENCE
    context.verify_mode = mode
    if mode is not ssl.CERT_NONE:
        context.options |= ssl.OP_NO_TICKET
        context.num_tickets = 0
    return context


def make_context(files: TlsFiles) -> ssl.SSLContext:
    """The context of a server with these files: TLS 1.2 or 1.3.

    :raises ConfigError: a file is missing or wrong, or certificate and key are no pair.
    """
    kind = AlertingContext if files.client_auth is ClientAuth.NONE else _Unresumed
    context = _restricted(kind(ssl.PROTOCOL_TLS_SERVER), _MODES[files.client_auth])
    context.sni_callback = _note_server_name
    for path in files.paths:
        _check_readable(path)
    try:
        # Without a password OpenSSL would ask for one at the terminal.
        context.load_cert_chain(files.cert, files.key, password="")
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"TLS certificate {files.cert} with key {files.key}: {reason_of(error)}; want a pair in PEM, and a key "
            "without a password"
        ) from None
    if files.client_ca is not None:
        try:
            context.load_verify_locations(files.client_ca)
        except (OSError, ValueError) as error:
            raise ConfigError(f"TLS client authorities {files.client_ca}: {reason_of(error)}") from None
    return context


def _note_server_name(session: ssl.SSLSocket | ssl.SSLObject, name: str | None, _context: ssl.SSLContext) -> None:
    setattr(session, _ASKED, name)


def server_name_of(session: ssl.SSLObject) -> str | None:
    """The server name that the client of a session asked for; None if it named none."""
    name: str | None = getattr(session, _ASKED, None)
    return name


def _check_readable(path: str) -> None:
    try:
        with open(path, "rb") as file:
            if os.fstat(file.fileno()).st_size > _MAX_FILE_BYTES:
                raise ConfigError(f"TLS file {path}: it is larger than {_MAX_FILE_BYTES} bytes")
    except OSError as error:
        raise ConfigError(f"TLS file {path}: {(error.strerror or str(error)).lower()}") from None


def reason_of(error: Exception) -> str:
    """OpenSSL's reason in words."""
    reason = getattr(error, "reason", None)
    return str(reason or error).lower().replace("_", " ")


class Certificates:
    """The certificates of one listener in force. ``context`` is for handshakes that begin now.

    :param listener: the listener in log lines.
    :raises ConfigError: as `make_context`.
    """

    def __init__(self, files: TlsFiles, listener: str) -> None:
        self._files = files
        self._listener = listener
        self._stamp: Stamp = _stamp(files)
        self._seen: Stamp = self._stamp
        self.context = make_context(files)
        self._ends_at = _end_of(files.cert)
        self._warn_if_expired()

    async def follow(self) -> None:
        """Read the files again whenever they have changed."""
        while True:
            await anyio.sleep(_LOOK_S)
            await self.look()

    async def look(self) -> None:
        """Read the files again if they have changed, and stayed the same since the look before."""
        stamp = await anyio.to_thread.run_sync(_stamp, self._files)
        if stamp == self._seen and stamp != self._stamp:
            await self.reload(stamp)
        self._seen = stamp
        self._warn_if_expired()

    async def reload(self, stamp: Stamp | None = None) -> None:
        """Read the files now. If they are wrong, the context stays."""
        self._stamp = await anyio.to_thread.run_sync(_stamp, self._files) if stamp is None else stamp
        try:
            context = await anyio.to_thread.run_sync(make_context, self._files)
            self._ends_at = await anyio.to_thread.run_sync(_end_of, self._files.cert)
        except ConfigError as error:
            log.error("TLS files not taken; those before stay", listener=self._listener, reason=str(error))
            return
        self.context = context
        ends_at = None if self._ends_at is None else self._ends_at.isoformat()
        log.info("TLS files read", listener=self._listener, expires=ends_at)

    def _warn_if_expired(self) -> None:
        """Tell once that a certificate has expired."""
        if self._ends_at is not None and self._ends_at <= datetime.now(UTC):
            log.error(
                "TLS certificate has expired; clients will refuse it",
                listener=self._listener, file=self._files.cert, expired=self._ends_at.isoformat(),
            )  # fmt: skip
            self._ends_at = None


def _end_of(path: str) -> datetime | None:
    """The time at which the first certificate of a file expires; None if it cannot be told."""
    from cryptography import x509

    try:
        return x509.load_pem_x509_certificate(Path(path).read_bytes()).not_valid_after_utc
    except (OSError, ValueError):
        return None


def _stamp(files: TlsFiles) -> Stamp:
    """What changes when a file is replaced or written; a file that is missing has no stamp."""
    return tuple(_stamp_of(path) for path in files.paths)


def _stamp_of(path: str) -> tuple[int, ...]:
    try:
        found = os.stat(path)
    except OSError:
        return ()
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
