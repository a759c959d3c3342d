"""A listener's certificates: the TLS context for new handshakes, rebuilt when the files change.

A connection keeps the context of its handshake. Unusable files change nothing: the old context stays, and one log line
gives the reason. A new pair is often written in two steps, so changed files are read once two looks in a row found them
equal.
"""

from __future__ import annotations

import os
import ssl
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import anyio
import anyio.to_thread
import structlog

from korvet.errors import ConfigError
from korvet.security.protocol import ClientAuth
from korvet.security.tls_alert import AlertingContext, Session

if TYPE_CHECKING:
    from cryptography import x509

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

_CRL_BEGIN: Final = b"-----BEGIN X509 CRL-----"
PROTOCOLS: Final = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
"""The versions of TLS by Kafka's names (ssl.enabled.protocols), lowest first."""
_SUITES: Final = {
    ssl.TLSVersion.TLSv1_2: {
        f"TLS_ECDHE_{key}_WITH_{suite}": f"ECDHE-{key}-{name}"
        for key in ("ECDSA", "RSA")
        for suite, name in (
            ("AES_128_GCM_SHA256", "AES128-GCM-SHA256"),
            ("AES_256_GCM_SHA384", "AES256-GCM-SHA384"),
            ("CHACHA20_POLY1305_SHA256", "CHACHA20-POLY1305"),
        )
    },
    ssl.TLSVersion.TLSv1_3: {
        name: name for name in ("TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256")
    },
}
"""Cipher suites by their names in Kafka's ssl.cipher.suites, with OpenSSL's names."""
CIPHER_SUITES: Final = tuple(suite for suites in _SUITES.values() for suite in suites)

Stamp = tuple[tuple[int, ...], ...]


class TlsFiles(NamedTuple):
    """The PEM files of a listener, and its TLS versions and cipher suites.

    ``client_ca`` holds the authorities of clients' certificates, and ``client_crl`` their revocation lists.
    ``protocols`` are of `PROTOCOLS`, ``cipher_suites`` of `CIPHER_SUITES`; none means all.
    """

    cert: str
    key: str
    client_ca: str | None = None
    client_auth: ClientAuth = ClientAuth.NONE
    client_crl: str | None = None
    protocols: tuple[str, ...] = ()
    cipher_suites: tuple[str, ...] = ()

    @property
    def paths(self) -> tuple[str, ...]:
        return (self.cert, self.key, *filter(None, (self.client_ca, self.client_crl)))

    @property
    def versions(self) -> list[ssl.TLSVersion]:
        """The accepted versions, lowest first; as in Java, a version without a cipher suite is not accepted."""
        found = [version for name, version in PROTOCOLS.items() if name in (self.protocols or PROTOCOLS)]
        for version, suites in _SUITES.items():
            if self.cipher_suites and not set(self.cipher_suites) & set(suites) and version in found:
                found.remove(version)
        return found


def tls_problem(files: TlsFiles) -> str | None:
    """The reason why these protocols and cipher suites cannot work, or None."""
    newest = set(_SUITES[ssl.TLSVersion.TLSv1_3])
    if 0 < len(newest & set(files.cipher_suites)) < len(newest):
        return f"tls-cipher-suites: of TLS 1.3, Python takes all or none of {', '.join(sorted(newest))}"
    return None if files.versions else "tls-cipher-suites has none for any of tls-protocols"


class _Unresumed(AlertingContext):
    """A context without session resumption, because a resumed session does not present its certificate again.

    Without tickets, TLS 1.3 cannot resume. OpenSSL keeps sessions of TLS 1.2 in the context that began their handshake,
    and Python cannot turn that off. So each handshake begins in its own context, and the server-name callback, which
    also runs without a name, switches to this one.
    """

    files: TlsFiles

    def wrap_bio(self, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO, *args: Any, **more: Any) -> Session:
        # OpenSSL takes versions and flags from the context that begins a session.
        first = _restricted(AlertingContext(ssl.PROTOCOL_TLS_SERVER), self.files)
        first.sni_callback = self._go_on
        session = first.wrap_bio(incoming, outgoing, *args, **more)
        # OpenSSL keeps the first context and its callback as long as the session.
        setattr(session, _FIRST, first)
        return session

    def _go_on(self, session: ssl.SSLSocket | ssl.SSLObject, name: str | None, first: ssl.SSLContext) -> None:
        session.context = self
        _note_server_name(session, name, first)


def _restricted(context: AlertingContext, files: TlsFiles) -> AlertingContext:
    """Apply a listener's settings to a context; no tickets if clients present certificates."""
    mode = _MODES[files.client_auth]
    context.minimum_version, context.maximum_version = files.versions[0], files.versions[-1]
    if older := [name for suite, name in _SUITES[ssl.TLSVersion.TLSv1_2].items() if suite in files.cipher_suites]:
        context.set_ciphers(":".join(older))
    if files.client_crl is not None:
        context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION | ssl.OP_CIPHER_SERVER_PREFERENCE
    context.verify_mode = mode
    if mode is not ssl.CERT_NONE:
        context.options |= ssl.OP_NO_TICKET
        context.num_tickets = 0
    return context


def make_context(files: TlsFiles) -> ssl.SSLContext:
    """The server context for these files: TLS 1.2 or 1.3.

    :raises ConfigError: a file is missing or wrong, or the key does not fit the certificate.
    """
    kind = AlertingContext if files.client_auth is ClientAuth.NONE else _Unresumed
    context = _restricted(kind(ssl.PROTOCOL_TLS_SERVER), files)
    if isinstance(context, _Unresumed):
        context.files = files
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
    if files.client_crl is not None:
        _load_revoked(context, files.client_crl)
    return context


def _load_revoked(context: ssl.SSLContext, path: str) -> None:
    """Load a file's revocation lists into a context.

    :raises ConfigError: the file has none.
    """
    try:
        lists = _revocation_lists(path)
        context.load_verify_locations(path)
    except (OSError, ValueError) as error:
        raise ConfigError(f"TLS revocation list {path}: {reason_of(error)}") from None
    if not lists:
        raise ConfigError(f"TLS revocation list {path}: it has no X509 CRL in PEM")


def _revocation_lists(path: str) -> list[x509.CertificateRevocationList]:
    from cryptography import x509

    return [x509.load_pem_x509_crl(_CRL_BEGIN + part) for part in Path(path).read_bytes().split(_CRL_BEGIN)[1:]]


def _note_server_name(session: ssl.SSLSocket | ssl.SSLObject, name: str | None, _context: ssl.SSLContext) -> None:
    setattr(session, _ASKED, name)


def server_name_of(session: ssl.SSLObject) -> str | None:
    """The server name that the client sent (SNI), or None."""
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
    reason = str(getattr(error, "reason", None) or error).lower().replace("_", " ")
    about = getattr(error, "verify_message", "")
    return f"{reason}: {about}" if about else reason


class Certificates:
    """The current certificates of one listener. ``context`` is for new handshakes.

    :param listener: the listener in log lines.
    :raises ConfigError: as `make_context`.
    """

    def __init__(self, files: TlsFiles, listener: str) -> None:
        self._files = files
        self._listener = listener
        self._stamp: Stamp = _stamp(files)
        self._seen: Stamp = self._stamp
        self.context = make_context(files)
        self._ends = _ends_of(files)
        self._warn_if_expired()

    async def follow(self) -> None:
        """Reload the files after each change, until cancelled."""
        while True:
            await anyio.sleep(_LOOK_S)
            await self.look()

    async def look(self) -> None:
        """Reload the files if they changed and are the same as at the previous look."""
        stamp = await anyio.to_thread.run_sync(_stamp, self._files)
        if stamp == self._seen and stamp != self._stamp:
            await self.reload(stamp)
        self._seen = stamp
        self._warn_if_expired()

    async def reload(self, stamp: Stamp | None = None) -> None:
        """Read the files now. If they are unusable, the old context stays."""
        self._stamp = await anyio.to_thread.run_sync(_stamp, self._files) if stamp is None else stamp
        try:
            context = await anyio.to_thread.run_sync(make_context, self._files)
            self._ends = await anyio.to_thread.run_sync(_ends_of, self._files)
        except ConfigError as error:
            log.error("TLS files not taken; those before stay", listener=self._listener, reason=str(error))
            return
        self.context = context
        ends_at = self._ends.get(self._files.cert)
        log.info("TLS files read", listener=self._listener, expires=None if ends_at is None else ends_at.isoformat())

    def _warn_if_expired(self) -> None:
        """Log once that a certificate or a revocation list has expired."""
        now = datetime.now(UTC)
        for path, ends_at in [one for one in self._ends.items() if one[1] <= now]:
            event = "TLS certificate has expired; clients will refuse it"
            if path == self._files.client_crl:
                event = "TLS revocation list has expired; clients with certificates of its authority are refused"
            log.error(event, listener=self._listener, file=path, expired=ends_at.isoformat())
            del self._ends[path]


def _ends_of(files: TlsFiles) -> dict[str, datetime]:
    """The expiry times of the certificate and the first revocation list, by file; unreadable ones are omitted."""
    from cryptography import x509

    found: dict[str, datetime] = {}
    with suppress(OSError, ValueError):
        found[files.cert] = x509.load_pem_x509_certificate(Path(files.cert).read_bytes()).not_valid_after_utc
    with suppress(OSError, ValueError):
        if files.client_crl is not None:
            ends = [end for one in _revocation_lists(files.client_crl) if (end := one.next_update_utc) is not None]
            found.update({files.client_crl: min(ends)} if ends else {})
    return found


def _stamp(files: TlsFiles) -> Stamp:
    """A value that changes when a file is replaced or written; a missing file has none."""
    return tuple(_stamp_of(path) for path in files.paths)


def _stamp_of(path: str) -> tuple[int, ...]:
    try:
        found = os.stat(path)
    except OSError:
        return ()
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
