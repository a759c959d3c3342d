"""Keys, values and headers as texts for people: JSON indented, other texts as they are, bytes in hexadecimal."""

from __future__ import annotations

import json
import re
from typing import Final, NamedTuple

from korvet.cli.ground.output import printable
from korvet.cli.kafka.offsets import TopicPartition
from korvet.cli.kafka.records import Headers, Record
from korvet.cli.records.formats import shown_time

LIST_CHARACTERS: Final = 4_000
"""Of a key or a value in a list; the record's own page shows up to `PAGE_CHARACTERS`."""
PAGE_CHARACTERS: Final = 1_000_000
_JSON_BYTES: Final = 262_144
_DEEPEST: Final = 16
_HEX_BYTES: Final = 512
_ROW_BYTES: Final = 16
_TOKEN: Final = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],:]|[^\s{}\[\],:"]+')
"""Tokens of a text that is known to be JSON."""


class Text(NamedTuple):
    """A key or a value: its kind (``null``, ``empty``, ``text``, ``json`` or ``binary``), its text, and its size."""

    kind: str
    text: str
    size_bytes: int
    is_cut: bool = False


class Shown(NamedTuple):
    """A record for a page."""

    partition: int
    offset: int
    time: str
    key: Text
    value: Text
    headers: list[tuple[str, Text]]


def shown_record(partition: TopicPartition, record: Record, most: int) -> Shown:
    """A record, with key, value and headers cut to ``most`` characters each."""
    return Shown(
        partition.partition,
        record.offset,
        shown_time(record.timestamp),
        shown_bytes(record.key, most),
        shown_bytes(record.value, most),
        _headers(record.headers, most),
    )


def _headers(headers: Headers, most: int) -> list[tuple[str, Text]]:
    return [
        (visible(name.decode(errors="backslashreplace"))[:most], shown_bytes(value, most)) for name, value in headers
    ]


def shown_bytes(data: bytes | None, most: int) -> Text:
    """Bytes as a text of at most ``most`` characters."""
    if data is None:
        return Text("null", "null", 0)
    if not data:
        return Text("empty", "empty", 0)
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return Text("binary", _hex(data[:_HEX_BYTES]), len(data), len(data) > _HEX_BYTES)
    pretty = _pretty(text) if len(data) <= _JSON_BYTES else None
    whole = visible(pretty or text)
    return Text("text" if pretty is None else "json", whole[:most], len(data), len(whole) > most)


def _pretty(text: str) -> str | None:
    """A JSON object or array with indents; None if the text is none. Names and numbers stay as they were written."""
    if text[:1] not in ("{", "["):
        return None
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return None
    tokens = _TOKEN.findall(text)
    parts, depth = [], 0
    for at, token in enumerate(tokens):
        before = tokens[at - 1] if at else ""
        if token in "}]":
            depth -= 1
            parts.append(token if before in "{[" else _line(depth) + token)
        else:
            opens_line = before in ("{", "[", ",")
            parts.append((_line(depth) if opens_line else "") + (": " if token == ":" else token))
            depth += token in "{["
    return "".join(parts)


def _line(depth: int) -> str:
    """A new line. Deep values are indented no further, because a short text could become a long one."""
    return "\n" + "  " * min(depth, _DEEPEST)


def visible(text: str) -> str:
    """A text with escapes for invisible characters except line breaks and tabs."""
    return printable(text, "\n\t")


def _hex(data: bytes) -> str:
    rows = []
    for at in range(0, len(data), _ROW_BYTES):
        row = data[at : at + _ROW_BYTES]
        letters = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        rows.append(f"{at:06x}  {row.hex(' '):<47}  {letters}")
    return "\n".join(rows)
