"""The largest array, string and tagged section at every location of every served request, refused before kio reads it.

In each version the request has one element too many, and in the last one as many as fit into 16 MiB.
"""

from __future__ import annotations

import struct

import pytest

from korvet.api import registry
from korvet.errors import MalformedRequest
from korvet.wire.codec import decode_header, decode_request, most_elements
from korvet.wire.schema import is_flexible
from tests.support.largest import Location, body, locations, tagged, varint, versions

SIZE_BYTES = 16 << 20


def header(key: int, version: int) -> bytes:
    return struct.pack(">hhih", key, version, 7, -1) + b"\x00" * is_flexible(key, version)


def is_refused(frame: bytes) -> bool:
    view = memoryview(frame)
    try:
        decode_request(decode_header(view), view)
    except MalformedRequest:
        return True
    return False


@pytest.mark.parametrize(("key", "version"), versions())
def test_largest_request_is_refused_in_every_array_and_the_smallest_is_not(key: int, version: int) -> None:
    head = header(key, version)
    smallest = Location(key, version, (), False)
    assert not is_refused(head + body(smallest, 0, {}))
    is_last = version == registry()[key].highest
    for location in locations(key, version):
        if location.is_array:
            if is_last:
                one = len(body(location, 1, {})) - len(body(location, 0, {}))
                assert is_refused(head + body(location, SIZE_BYTES // one, {})), location
            assert is_refused(head + body(location, most_elements(key) + 1, {})), location
            if is_last:
                assert not is_refused(head + body(location, most_elements(key) - len(location.path) + 1, {})), location
        elif is_last and is_flexible(key, version):
            assert is_refused(head + body(location, SIZE_BYTES, {})), location


@pytest.mark.parametrize(("key", "version"), [one for one in versions() if one[0] > 0 and is_flexible(*one)])
def test_tagged_fields_are_refused_in_every_entity_and_in_the_header(key: int, version: int) -> None:
    count = SIZE_BYTES // 2 if version == registry()[key].highest else 65
    head = struct.pack(">hhih", key, version, 7, -1)
    least = body(Location(key, version, (), False), 0, {})
    assert is_refused(head + varint(count) + b"\x00\x00" * count + least)
    for location in (Location(key, version, (), False, True), *locations(key, version)):
        if location.is_entity:
            assert is_refused(head + b"\x00" + tagged(location, count, {})), location
