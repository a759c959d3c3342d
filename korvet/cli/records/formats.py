"""The forms of a record in 'topics consume': its value, a line with all of it, JSON, or kcat's templates."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import click

from korvet.cli.ground.output import printable, printable_json
from korvet.cli.kafka.offsets import TopicPartition
from korvet.cli.kafka.records import Headers, Record, Undecodable

Write = Callable[[TopicPartition, Record], bytes]
Show = Callable[[bytes], bytes]
JSON, FULL, VALUE = "json", "full", "value"
_FLAG: Final = "--format"

_TOKEN: Final = re.compile(r"%(.)|\\(x[0-9A-Fa-f]{2}|.)|([^%\\]+)|(.)", re.DOTALL)
_ESCAPES: Final = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\"}
_FIELDS: Final[dict[str, Callable[[TopicPartition, Record, Show], bytes]]] = {
    "s": lambda partition, record, show: show(record.value or b""),
    "S": lambda partition, record, show: _size(record.value),
    "k": lambda partition, record, show: show(record.key or b""),
    "K": lambda partition, record, show: _size(record.key),
    "h": lambda partition, record, show: show(_listed(record.headers)),
    "t": lambda partition, record, show: partition.topic.encode(),
    "p": lambda partition, record, show: b"%d" % partition.partition,
    "o": lambda partition, record, show: b"%d" % record.offset,
    "T": lambda partition, record, show: b"%d" % record.timestamp,
    "%": lambda partition, record, show: b"%",
}


def make_format(text: str, *, on_terminal: bool) -> Write:
    """A function that writes records in a format; a terminal gets escapes for control characters.

    :raises click.BadParameter: if a template has an unknown field or escape.
    """
    show: Show = _shown if on_terminal else bytes
    if text == JSON:
        return lambda partition, record: _line(as_json(partition, record), on_terminal=on_terminal)
    if text == VALUE:
        return lambda partition, record: show(record.value or b"") + b"\n"
    if text == FULL:
        return lambda partition, record: _full(partition, record, show)
    parts = list(_parts(text, show))
    return lambda partition, record: b"".join(part(partition, record) for part in parts)


def _parts(template: str, show: Show) -> Iterator[Write]:
    for found in _TOKEN.finditer(template):
        name, escape, literal, dangling = found.groups()
        if dangling is not None:
            raise click.BadParameter(f"it ends in {dangling!r}, and a letter has to follow", param_hint=_FLAG)
        if literal is not None:
            yield _constant(literal.encode())
        elif name is not None:
            if name not in _FIELDS:
                raise click.BadParameter(
                    f"{found[0]!r} is no field; want one of %{' %'.join(_FIELDS)}", param_hint=_FLAG
                )
            yield _field(name, show)
        elif escape.startswith("x") and len(escape) > 1:
            yield _constant(bytes.fromhex(escape[1:]))
        elif escape in _ESCAPES:
            yield _constant(_ESCAPES[escape])
        else:
            raise click.BadParameter(
                f"\\{escape} is no escape; want one of \\n \\t \\r \\0 \\\\ \\xNN", param_hint=_FLAG
            )


def _constant(data: bytes) -> Write:
    return lambda partition, record: data


def _field(name: str, show: Show) -> Write:
    write = _FIELDS[name]
    return lambda partition, record: write(partition, record, show)


def _shown(data: bytes) -> bytes:
    """Data with escapes for a terminal; line feeds and tabs stay."""
    return printable(data.decode(errors="backslashreplace"), "\n\t").encode()


def _size(data: bytes | None) -> bytes:
    return b"%d" % (-1 if data is None else len(data))


def _listed(headers: Headers) -> bytes:
    return b",".join(name if value is None else name + b"=" + value for name, value in headers)


def _full(partition: TopicPartition, record: Record, show: Show) -> bytes:
    key = b"" if record.key is None else b" key=" + show(record.key)
    headers = b" headers=" + show(_listed(record.headers)) if record.headers else b""
    value = b" null" if record.value is None else b" " + show(record.value)
    return f"{partition}@{record.offset} {shown_time(record.timestamp)}".encode() + key + headers + value + b"\n"


def shown_time(timestamp: int) -> str:
    """A record's timestamp by ISO 8601, or as a number: a producer may have written any number."""
    try:
        return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=timestamp)).isoformat(timespec="milliseconds")
    except OverflowError:
        return str(timestamp)


def as_json(partition: TopicPartition, record: Record) -> dict[str, Any]:
    """A record with the names that 'topics produce --format json' takes."""
    return {
        "topic": partition.topic,
        "partition": partition.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        "key": _text(record.key),
        "value": _text(record.value),
        "headers": [[name.decode(errors="backslashreplace"), _text(value)] for name, value in record.headers],
    }


def undecodable_as_json(partition: TopicPartition, found: Undecodable, *, on_terminal: bool) -> bytes:
    """A line for records that cannot be read."""
    fields = {"topic": partition.topic, "partition": partition.partition, "offset": found.offset}
    return _line({**fields, "last_offset": found.last_offset, "error": found.reason}, on_terminal=on_terminal)


def _text(data: bytes | None) -> str | dict[str, str] | None:
    """A text, or ``{"base64": …}`` for bytes that are none."""
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def _line(value: dict[str, Any], *, on_terminal: bool) -> bytes:
    text = json.dumps(value, ensure_ascii=False)
    return (printable_json(text) if on_terminal else text).encode(errors="backslashreplace") + b"\n"
