"""Kafka's primitive types of variable size as bytes."""

from __future__ import annotations

from functools import lru_cache

_ONE_BYTE = [bytes([value]) for value in range(0x80)]


def unsigned_varint(value: int) -> bytes:
    """An UNSIGNED_VARINT: seven bits a byte, the lowest first (KIP-482)."""
    if value < 0x80:
        return _ONE_BYTE[value]
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


_LONGEST_NAME = 249  # a topic's longest name; clients may send longer ones


def string(value: str) -> bytes:
    """A STRING. Short ones are cached, because topic names repeat.

    :raises OverflowError: the string has more than 32,767 bytes.
    """
    return _short_string(value) if len(value) <= _LONGEST_NAME else _string(value)


def _string(value: str) -> bytes:
    encoded = value.encode()
    return len(encoded).to_bytes(2, "big", signed=True) + encoded


_short_string = lru_cache(maxsize=4096)(_string)


def nullable_string(value: str | None) -> bytes:
    """A NULLABLE_STRING."""
    return b"\xff\xff" if value is None else string(value)


def compact_string(value: str) -> bytes:
    """A COMPACT_STRING. Short ones are cached."""
    return _short_compact_string(value) if len(value) <= _LONGEST_NAME else _compact_string(value)


def _compact_string(value: str) -> bytes:
    encoded = value.encode()
    return unsigned_varint(len(encoded) + 1) + encoded


_short_compact_string = lru_cache(maxsize=4096)(_compact_string)


def compact_nullable_string(value: str | None) -> bytes:
    """A COMPACT_NULLABLE_STRING."""
    return b"\x00" if value is None else compact_string(value)
