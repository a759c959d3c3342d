"""Records from the input of 'topics produce': lines of values, with keys before a separator, or of JSON."""

from __future__ import annotations

import base64
import binascii
import json
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from korvet.cli.kafka.records import Headers, Unsent
from korvet.errors import KorvetError

READ_BYTES: Final = 1 << 20
MOST_BYTES: Final = 64 << 20
"""The most bytes of one record, because the bytes of an unfinished line are kept."""
_NAMES: Final = {"key", "value", "headers", "timestamp", "topic", "partition", "offset"}
_LEAST, _MOST = -(1 << 63), (1 << 63) - 1

Parse = Callable[[bytes, int, int], Unsent]
"""(line, its number from 1, the time in ms) -> a record."""


def read_lines(descriptor: int, delimiter: bytes) -> Iterator[list[bytes]]:
    """Lists of lines without their delimiters, as soon as they can be read.

    :raises KorvetError: if a line is too long for a record.
    """
    parts: list[bytes] = []
    size_bytes, border = 0, b""
    while data := os.read(descriptor, READ_BYTES):
        # A delimiter may lie on both sides of the border between two reads.
        border += data
        parts.append(data)
        size_bytes += len(data)
        if delimiter in border:
            *lines, border = b"".join(parts).split(delimiter)
            parts, size_bytes = [border] if border else [], len(border)
            yield lines
        border = border[1 - len(delimiter) :] if len(delimiter) > 1 else b""
        if size_bytes > MOST_BYTES:
            raise KorvetError(f"a record of more than {MOST_BYTES} bytes; is --delimiter right?")
    if parts:
        yield [b"".join(parts)]


def line_parser(key: bytes | None, separator: bytes | None, headers: Headers, *, empty_is_null: bool) -> Parse:
    """A function that parses a line as a value, or as a key and a value with a separator between."""

    def parse(line: bytes, number: int, now_ms: int) -> Unsent:
        own, value = key, line
        if separator is not None:
            own, found, value = line.partition(separator)
            if not found:
                raise KorvetError(f"line {number} has no key: there is no {separator.decode(errors='replace')!r} in it")
        return Unsent(
            None if empty_is_null and own == b"" else own,
            None if empty_is_null and not value else value,
            headers,
            now_ms,
        )

    return parse


def parse_json(line: bytes, number: int, now_ms: int) -> Unsent:
    """A record from an object as 'topics consume --json' writes it; its topic, partition and offset do not count."""
    try:
        parsed = json.loads(line)
        if not isinstance(parsed, dict) or not _NAMES.issuperset(parsed):
            raise ValueError(f"want an object with only {', '.join(sorted(_NAMES))}")
        timestamp = parsed.get("timestamp", now_ms)
        if type(timestamp) is not int or not _LEAST <= timestamp <= _MOST:
            raise ValueError("timestamp is no number of milliseconds since 1970")
        return Unsent(
            _bytes(parsed.get("key"), "key"),
            _bytes(parsed.get("value"), "value"),
            _headers(parsed.get("headers")),
            timestamp,
        )
    except (ValueError, RecursionError) as error:
        raise KorvetError(f"line {number} is no record as JSON: {error}") from None


def _bytes(value: Any, name: str) -> bytes | None:
    match value:
        case None:
            return None
        case str():
            return value.encode(errors="surrogatepass")
        case {"base64": str(text)} if len(value) == 1:
            try:
                return base64.b64decode(text, validate=True)
            except binascii.Error as error:
                raise ValueError(f"{name}: {error}") from None
    raise ValueError(f'{name}: want a text, null or {{"base64": TEXT}}')


def _headers(value: Any) -> Sequence[tuple[bytes, bytes | None]]:
    pairs = list(value.items()) if isinstance(value, dict) else value or []
    if not isinstance(pairs, list) or not all(isinstance(pair, list | tuple) and len(pair) == 2 for pair in pairs):
        raise ValueError("headers: want [[NAME, VALUE], …]")
    return [(_bytes(name, "headers") or b"", _bytes(content, "headers")) for name, content in pairs]
