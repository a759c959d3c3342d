"""The meaning of Redis's error replies and connection failures for korvet."""

from __future__ import annotations

import ssl

from korvet.errors import (
    KorvetError,
    SlotMoving,
    StoreError,
    StoreFull,
    StoreRefusing,
    StoreUnavailable,
    UnknownArguments,
)
from korvet.redis.address import Address
from korvet.redis.password_file import NO_PASSWORD
from korvet.redis.resp import Connection

_UNAVAILABLE = (
    "LOADING", "MASTERDOWN", "READONLY", "CLUSTERDOWN", "BUSY", "UNBLOCKED", "ERR WAIT cannot be used with replica",
)  # fmt: skip
_REFUSING = {
    "MISCONF": "Redis cannot write to its disk: make room there, and see its own log",
    "NOREPLICAS": "Redis has fewer replicas than min-replicas-to-write asks for: see to these, or lower it",
}
"""The first words of a server's refusal of all writes, and their meaning."""
A_REPLICA = "the server is a replica and takes no writes: name its primary, or the sentinels"
_FORGOTTEN = "Redis forgets a user of ACL SETUSER when it starts anew, unless ACL SAVE or CONFIG REWRITE came after it"
_ROOM_BYTES = 64 << 20
_MOST_KEY_BYTES = 4096
_KEY_AT = 4
_FIRST_KEY_AT = 8
"""In a packed command, after the numbers of words and bytes, the command and the bytes of the key; in a function call,
also after the function's name and the number of keys."""
_OF_FUNCTION = "@user_function:"
_NON_LOCAL = "attempted to access a non local key"
"""The error of a function that derives a key in a slot which is on its way to another server; Valkey begins with a
capital."""
_NO_TLS = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE")
_FINAL_TLS = ("CERTIFICATE_VERIFY_FAILED", *_NO_TLS)
TLS_THERE = "the server speaks TLS at this port: name it rediss:// and not redis://"
NO_TLS_THERE = "the server does not speak TLS at this port: name it redis:// and not rediss://"
_CERTIFICATE_WANTED = "the server wants a client's certificate: ?cert=FILE&key=FILE"
_FINAL = (
    "WRONGPASS", "NOAUTH", "NOPERM", "DENIED", "ERR AUTH", "ERR DB index", "ERR SELECT", "ERR invalid",
    TLS_THERE, NO_TLS_THERE, _CERTIFICATE_WANTED, NO_PASSWORD,
)  # fmt: skip


def as_exception(text: str) -> KorvetError:
    """The exception for an error reply."""
    if text.startswith("OOM"):
        return StoreFull(text)
    if text.startswith(tuple(_REFUSING)):
        return StoreRefusing(f"{_REFUSING[text.split()[0]]} ({text.rstrip('.')})")
    if text.startswith(_UNAVAILABLE):
        return StoreUnavailable(text)
    if is_redirection(text):
        return SlotMoving(text)
    # The library of korvet 0.7 has no code for this.
    if text.startswith("ARGUMENTS ") or " takes the arguments " in text:
        return UnknownArguments(text)
    return StoreError(text)


def with_key(text: str, packed: object) -> str:
    """An error reply that names a key: a plain command's in place of the words "a key" in WRONGTYPE, and the first key
    of a function that failed over what it found."""
    is_of_function = _OF_FUNCTION in text and "korvet:{" not in text
    is_wrong = text.startswith("WRONGTYPE Operation against a key ")
    if not (is_of_function or is_wrong) or not isinstance(packed, bytes | bytearray):
        return text
    words, at = bytes(packed[:_MOST_KEY_BYTES]).split(b"\r\n"), _FIRST_KEY_AT if is_of_function else _KEY_AT
    if len(words) < at + 2 or not words[at].startswith(b"korvet:"):
        return text
    key = words[at].decode(errors="replace")
    if is_of_function:
        return f"{text} (first key {key})"
    return f"WRONGTYPE Operation against {key}, which holds the wrong kind of value"


def no_room_for_library(info: bytes) -> str:
    """The reason why a server at maxmemory refuses the library, and the remedy.

    :param info: the server's answer to INFO memory.
    """
    memory = {name: value for name, found, value in (line.partition(":") for line in info.decode().split()) if found}
    limit, used = int(memory.get("maxmemory", 0)), int(memory.get("used_memory", 0))
    wanted = (max(limit, used) // _ROOM_BYTES + 2) * _ROOM_BYTES
    return (
        f"Redis takes no functions at maxmemory ({used >> 20} of {limit >> 20} MiB are used), and without them nothing "
        f"can be trimmed. Give it room for a moment: redis-cli CONFIG SET maxmemory {wanted}; front-ends load them "
        f"within seconds. Then trim topics (korvet topics trim), and set it back: CONFIG SET maxmemory {limit}"
    )


def is_redirection(text: str) -> bool:
    """True if a cluster node refused a command because its slot has moved or is moving."""
    return text.startswith("MOVED ") or is_open_slot(text)


def is_open_slot(text: str) -> bool:
    """True if an error reply reports a slot whose keys are moving."""
    return text.startswith(("ASK ", "TRYAGAIN")) or _NON_LOCAL in text.lower()


def redirection(text: str, answering: Address | None) -> tuple[int, Address] | None:
    """The slot and server of ``MOVED 3999 127.0.0.1:6381`` or of an ASK; None for other errors.

    :param answering: the server that answered. A redirection without a host means this server's host
        (cluster-preferred-endpoint-type).
    """
    words = text.split()
    if len(words) < 3 or words[0] not in ("MOVED", "ASK"):
        return None
    host, _, port = words[2].rpartition(":")
    if not host and answering is not None:
        host = answering.host
    return (int(words[1]), Address(host, int(port))) if host else None


def is_final(error: Exception) -> bool:
    """True if retries cannot help a failed connection: wrong login, certificate, or use of TLS."""
    if isinstance(error, ssl.SSLError):
        return error.reason in _FINAL_TLS
    return isinstance(error, StoreError) and str(error).startswith(_FINAL)


def failure_text(error: Exception) -> str:
    """The reason of a failed connection, for users."""
    if isinstance(error, TimeoutError):
        return "no answer within 5 s"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the server's certificate is not trusted ({error.verify_message}): name its authority with ?ca=FILE"
    if isinstance(error, ssl.SSLError) and error.reason in _NO_TLS:
        return NO_TLS_THERE
    if str(error).startswith("WRONGPASS"):
        return f"{error} ({_FORGOTTEN})"
    return str(error)


def why_closed(error: StoreUnavailable, connection: Connection) -> KorvetError:
    """The reason why a server closed a connection before it answered."""
    cause = connection.error
    if isinstance(cause, ssl.SSLError) and "CERTIFICATE_REQUIRED" in (cause.reason or ""):
        return StoreError(_CERTIFICATE_WANTED)
    return StoreUnavailable(f"{error}: {cause}") if cause is not None else error
