"""Kafka's primitive types as bytes, for answers that are packed by hand."""

from __future__ import annotations

from functools import lru_cache


def unsigned_varint(value: int) -> bytes:
    """Seven bits a byte, lowest first (KIP-482)."""
    if value < 0x80:
        return value.to_bytes(1, "big")
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


@lru_cache(maxsize=4096)
def string(value: str) -> bytes:
    """A STRING; kept, because topic names come again and again."""
    encoded = value.encode()
    return len(encoded).to_bytes(2, "big") + encoded


def nullable_string(value: str | None) -> bytes:
    """A NULLABLE_STRING."""
    return b"\xff\xff" if value is None else string(value)


@lru_cache(maxsize=4096)
def compact_string(value: str) -> bytes:
    """A COMPACT_STRING; kept, as `string` is."""
    encoded = value.encode()
    return unsigned_varint(len(encoded) + 1) + encoded
