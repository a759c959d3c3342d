"""No bound on requests is below a limit that korvet grants."""

from __future__ import annotations

import struct

import pytest

from korvet.api import registry
from korvet.wire.codec import decode_header, decode_request, most_elements
from korvet.wire.schema import is_flexible
from scripts.generated.bounds import Named, named
from tests.support.largest import body

LISTS = [one for one in named() if one.location.version == registry()[one.location.key].highest]


@pytest.mark.parametrize(
    "one", LISTS, ids=lambda one: f"{registry()[one.location.key].name}-{'.'.join(one.location.path)}"
)
def test_request_for_everything_that_a_limit_grants_is_taken(one: Named) -> None:
    key, version = one.location.key, one.location.version
    head = struct.pack(">hhih", key, version, 7, -1) + b"\x00" * is_flexible(key, version)
    frame = memoryview(head + body(one.location, one.grant.number, {}))
    decode_request(decode_header(frame), frame)


def test_elements_of_every_such_request_are_within_the_bound() -> None:
    beyond = [one for one in named() if one.elements > most_elements(one.location.key)]
    assert not beyond
