"""What error replies of Redis, and connections that fail, mean to korvet."""

from __future__ import annotations

import ssl

from korvet.errors import KorvetError, SlotMoving, StoreError, StoreFull, StoreUnavailable
from korvet.store.address import Address
from korvet.store.resp import Connection

_UNAVAILABLE = (
    "LOADING", "MASTERDOWN", "READONLY", "CLUSTERDOWN", "BUSY", "MISCONF", "NOREPLICAS",
    "UNBLOCKED", "ERR WAIT cannot be used with replica",
)  # fmt: skip
_NON_LOCAL = "attempted to access a non local key"
"""How a function is refused a key that it derived, where that has left the node or is to be made elsewhere."""
_NO_TLS = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE")
_FINAL_TLS = ("CERTIFICATE_VERIFY_FAILED", *_NO_TLS)
TLS_THERE = "the server speaks TLS at this port: name it rediss:// and not redis://"
NO_TLS_THERE = "the server does not speak TLS at this port: name it redis:// and not rediss://"
_CERTIFICATE_WANTED = "the server wants a client's certificate: ?cert=FILE&key=FILE"
_FINAL = (
    "WRONGPASS", "NOAUTH", "NOPERM", "DENIED", "ERR AUTH", "ERR DB index", "ERR SELECT", "ERR invalid",
    TLS_THERE, NO_TLS_THERE, _CERTIFICATE_WANTED,
)  # fmt: skip


def as_exception(text: str) -> KorvetError:
    """The exception that an error reply stands for."""
    if text.startswith("OOM"):
        return StoreFull(text)
    if text.startswith(_UNAVAILABLE):
        return StoreUnavailable(text)
    if is_redirection(text):
        return SlotMoving(text)
    return StoreError(text)


def is_redirection(text: str) -> bool:
    """Whether a cluster's node refused a command because its slot has moved or is moving."""
    return text.startswith("MOVED ") or is_open_slot(text)


def is_open_slot(text: str) -> bool:
    """Whether an error reply says that the keys of a slot are on their way."""
    return text.startswith(("ASK ", "TRYAGAIN")) or _NON_LOCAL in text


def redirection(text: str, asked: Address | None) -> tuple[int, Address] | None:
    """Slot and node of ``MOVED 3999 127.0.0.1:6381`` or of an ASK; None where an error reply names none.

    :param asked: who answered; a node without a host is at the same one (cluster-preferred-endpoint-type).
    """
    words = text.split()
    if len(words) < 3 or words[0] not in ("MOVED", "ASK"):
        return None
    host, _, port = words[2].rpartition(":")
    if not host and asked is not None:
        host = asked.host
    return (int(words[1]), Address(host, int(port))) if host else None


def is_final(error: Exception) -> bool:
    """Whether a connection failed for a reason that time does not mend: a login, a certificate, TLS or not."""
    if isinstance(error, ssl.SSLError):
        return error.reason in _FINAL_TLS
    return isinstance(error, StoreError) and str(error).startswith(_FINAL)


def told(error: Exception) -> str:
    """Why there is no connection, in words."""
    if isinstance(error, TimeoutError):
        return "no answer within 5 s"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the server's certificate is not trusted ({error.verify_message}): name its authority with ?ca=FILE"
    if isinstance(error, ssl.SSLError) and error.reason in _NO_TLS:
        return NO_TLS_THERE
    return str(error)


def why_closed(error: StoreUnavailable, connection: Connection) -> KorvetError:
    """Why a server closed a connection before it answered."""
    cause = connection.error
    if isinstance(cause, ssl.SSLError) and "CERTIFICATE_REQUIRED" in (cause.reason or ""):
        return StoreError(_CERTIFICATE_WANTED)
    return StoreUnavailable(f"{error}: {cause}") if cause is not None else error
