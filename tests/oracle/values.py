"""Values of request bodies that are known only when a script is played.

A string of the form "$name" stands for a variable, and "$name:text" for its value as a string.
"""

import struct
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from tests.oracle import batches
from tests.oracle.batches import Batch
from tests.oracle.messages import ScriptError


@dataclass(frozen=True, slots=True, kw_only=True)
class Plus:
    """A saved number and an amount to add to it."""

    var: str
    amount: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    """Bytes made of pieces: bytes as they are, `$name` as a Kafka string (int16 length first)."""

    pieces: tuple[bytes | str, ...]


def resolved(value: Any, variables: Mapping[str, Any]) -> Any:
    """A body, or a part of one, as plain values.

    :raises ScriptError: it names a variable that is not there.
    """
    if isinstance(value, str) and value.startswith("$"):
        return _variable(value[1:], variables)
    if isinstance(value, Plus):
        return _variable(value.var, variables) + value.amount
    if isinstance(value, Packed):
        return b"".join(_piece(piece, variables) for piece in value.pieces)
    if isinstance(value, Batch):
        fields = ("timestamp", "producer_id", "producer_epoch")
        return batches.encode(replace(value, **{name: resolved(getattr(value, name), variables) for name in fields}))
    if isinstance(value, dict):
        return {key: resolved(item, variables) for key, item in value.items()}
    if isinstance(value, list):
        items = [resolved(item, variables) for item in value]
        return b"".join(items) if value and all(isinstance(item, Batch) for item in value) else items
    return value


def _piece(piece: bytes | str, variables: Mapping[str, Any]) -> bytes:
    if isinstance(piece, bytes):
        return piece
    text = str(resolved(piece, variables)).encode()
    return struct.pack(">h", len(text)) + text


def _variable(name: str, variables: Mapping[str, Any]) -> Any:
    if name.endswith(":text"):
        return str(_variable(name.removesuffix(":text"), variables))
    try:
        return variables[name]
    except KeyError:
        raise ScriptError(f"nothing saved ${name}") from None
