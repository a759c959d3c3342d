"""JSON objects as fields of a stream entry, for Redis clients that read a topic.

An object lies in fields ``value.<name>``, one for each property: text as it is, all else as JSON. Kafka clients get the
very bytes that were produced. So only objects whose fields give these bytes back are laid out so. They have no repeated
name, and are written in one of the usual ways (`_WAYS`). Any other value stays as it is.

The layout says how to rebuild the object: the number of its way, and for each property ``s`` (text) or ``j`` (JSON).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from json.encoder import encode_basestring, encode_basestring_ascii
from typing import Any, Final, NamedTuple

_VALUE: Final = b"value."
MOST_MEMBERS: Final = 500
"""The members of a JSON object that become fields of an entry."""


class _Way(NamedTuple):
    """A style of JSON: the text after a property, the text after a name, and the escaping of non-ASCII."""

    comma: str
    colon: str
    is_ascii: bool

    def text(self, content: str) -> str:
        return encode_basestring_ascii(content) if self.is_ascii else encode_basestring(content)

    def dump(self, content: Any) -> str:
        return json.dumps(content, ensure_ascii=self.is_ascii, separators=(self.comma, self.colon))


_WAYS: Final = tuple(_Way(*marks, is_ascii) for marks in ((",", ":"), (", ", ": ")) for is_ascii in (False, True))


class Members(NamedTuple):
    """An object's layout, and its fields with their values."""

    layout: bytes
    fields: list[bytes]


def flattened(value: bytes) -> Members | None:
    """The layout and fields of a value; None if the value must stay whole."""
    if not value.startswith(b"{"):
        return None
    try:
        parsed = json.loads(value.decode(), parse_constant=_no_number)
        if len(parsed) > MOST_MEMBERS:
            return None
        for number, way in enumerate(_WAYS):
            if way.dump(parsed).encode() == value:
                return _members(number, way, parsed)
    except (ValueError, RecursionError):
        # The value is not JSON, or not UTF-8: it has half of a surrogate pair, for example.
        pass
    return None


def _no_number(name: str) -> None:
    raise ValueError(f"{name} is not a JSON value")


def _members(number: int, way: _Way, parsed: dict[str, Any]) -> Members | None:
    kinds = [str(number)]
    fields: list[bytes] = []
    for name, content in parsed.items():
        is_text = isinstance(content, str)
        kinds.append("s" if is_text else "j")
        fields += (_VALUE + name.encode(), (content if is_text else way.dump(content)).encode())
    return Members("".join(kinds).encode(), fields)


def joined(layout: bytes, fields: Sequence[bytes]) -> tuple[bytes, int]:
    """The value rebuilt from a layout and fields, and the number of elements of ``fields`` used."""
    way, kinds = _WAYS[int(layout[:1])], layout[1:].decode()
    members = []
    for at, kind in enumerate(kinds):
        name, content = fields[2 * at][len(_VALUE) :].decode(), fields[2 * at + 1].decode()
        members.append(f"{way.text(name)}{way.colon}{way.text(content) if kind == 's' else content}")
    return f"{{{way.comma.join(members)}}}".encode(), 2 * len(kinds)
