"""JSON by RFC 8259, as Python's json parses it, but without NaN, Infinity and repeated names in an object.

msgspec reads most values three times as fast. It keeps the last of two members of one name, so their number is checked.
A value that msgspec might read differently is read by Python's json.
"""

from __future__ import annotations

import json
from typing import Any, Final

import msgspec

MOST_LEVELS: Final = 100
"""The deepest nesting that msgspec parses; Python's versions reject deeper values at different levels."""
_TOO_DEEP: Final = "it is nested too deeply"
_UNSURE: Final = object()


def parsed(value: bytes | memoryview) -> Any:
    """Parse a value in UTF-8.

    :raises ValueError: with the reason; UnicodeDecodeError if the value is not UTF-8.
    """
    found = _parsed_quickly(bytes(value))
    return parsed_text(str(value, "utf-8")) if found is _UNSURE else found


def parsed_text(text: str) -> Any:
    """:raises ValueError: with the reason."""
    try:
        return _decode(text)
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None


def _parsed_quickly(value: bytes) -> Any:
    """The same value as `parsed_text` returns, or `_UNSURE`.

    Without escapes each quotation mark begins or ends a text. There are two for each name and text of the value, and
    more if a name occurred twice.
    """
    if b"\\" in value:
        return _UNSURE
    try:
        found = decode_quickly(value)
        marks = quotation_marks(found, MOST_LEVELS)
    except UNREADABLE:
        return _UNSURE
    return found if marks == value.count(b'"') else _UNSURE


def quotation_marks(value: Any, levels: int) -> int:
    """The number of quotation marks around a value's names and texts.

    :raises RecursionError: the value has more levels.
    """
    kind = type(value)
    if kind is dict:
        marks, parts = 2 * len(value), value.values()
    elif kind is list:
        marks, parts = 0, value
    else:
        return 2 if kind is str else 0
    if not levels:
        raise RecursionError
    for part in parts:
        kind = type(part)
        if kind is str:
            marks += 2
        elif kind is dict or kind is list:
            marks += quotation_marks(part, levels - 1)
    return marks


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise ValueError(f"the name {name!r} occurs twice in an object")
            seen.add(name)
    return members


def _no_number(name: str) -> None:
    raise ValueError(f"{name} is not a JSON value")


_decode: Final = json.JSONDecoder(parse_constant=_no_number, object_pairs_hook=_object).decode
decode_quickly: Final = msgspec.json.Decoder().decode
"""Parse a value; of two members of one name the last wins. The caller compares `quotation_marks` with the text's."""
UNREADABLE: Final = (msgspec.MsgspecError, RecursionError, ValueError)
"""What `decode_quickly` and `quotation_marks` raise."""
