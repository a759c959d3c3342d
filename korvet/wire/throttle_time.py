"""The throttle time in a response that was packed without one: four bytes, whose place the response's schema tells.

Responses are mostly packed by hand, and almost never throttled. So no packing function knows of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from functools import cache

from korvet.wire.codec import (
    API_VERSIONS_KEY,
    PRODUCE_KEY,
    Buffers,
    has_tagged_response_header,
    is_flexible,
    read_unsigned_varint,
    response_schema,
)

_HEAD_BYTES = 8
"""Size and correlation id."""
_VERSIONS_BYTES = 6
"""An API's key, lowest and highest version."""
_SIZES = {"error_code": 2}
"""The sizes of fields that come before the throttle time."""
_LONGEST_MS = 2**31 - 1


def told(api_key: int, version: int, frame: Buffers, throttle_ms: int) -> Buffers:
    """A whole response frame with a throttle time in ms; the frame itself if its version has none."""
    place = _place(api_key, version)
    if place is None:
        return frame
    at = place(frame)
    packed = min(throttle_ms, _LONGEST_MS).to_bytes(4, "big")
    out = list(frame)
    for number, buffer in enumerate(out):
        if at < len(buffer):
            out[number] = b"".join((buffer[:at], packed, buffer[at + 4 :]))
            break
        at -= len(buffer)
    return out


@cache
def _place(api_key: int, version: int) -> Callable[[Buffers], int] | None:
    """A function that tells where a frame has the throttle time; None if it has none."""
    names = [field.name for field in fields(response_schema(api_key, version))]
    if "throttle_time" not in names:
        return None
    head = _HEAD_BYTES + has_tagged_response_header(api_key, version)
    if api_key == API_VERSIONS_KEY:
        return lambda frame: _behind_versions(version, frame)
    if api_key == PRODUCE_KEY:
        # Tagged fields follow, of which korvet sends none.
        end = 4 + is_flexible(api_key, version)
        return lambda frame: sum(map(len, frame)) - end
    at = head + sum(_SIZES[name] for name in names[: names.index("throttle_time")])
    return lambda _frame: at


def _behind_versions(version: int, frame: Buffers) -> int:
    """The place in a response to ApiVersions: behind its error code and the array of APIs."""
    whole, at = memoryview(b"".join(frame)), _HEAD_BYTES + 2
    if not is_flexible(API_VERSIONS_KEY, version):
        return at + 4 + _VERSIONS_BYTES * int.from_bytes(whole[at : at + 4], "big")
    length, at = read_unsigned_varint(whole, at)
    return at + (_VERSIONS_BYTES + 1) * (length - 1)
