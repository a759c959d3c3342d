"""Headers and bodies between bytes and Python. These tests do not repeat kio's own."""

from __future__ import annotations

import struct
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from korvet.errors import MalformedRequest
from korvet.wire.codec import RequestHeader, decode_header, decode_request
from korvet.wire.schema import has_top_level_error, is_flexible, is_known
from korvet.wire.shape import LONGEST_ID_BYTES

METADATA, API_VERSIONS, HEARTBEAT, LIST_GROUPS, FETCH = 3, 18, 12, 16, 1


def header(api_key: int, version: int, client_id: bytes | None = b"me", tail: bytes = b"") -> memoryview:
    name = b"\xff\xff" if client_id is None else struct.pack(">h", len(client_id)) + client_id
    return memoryview(struct.pack(">hhi", api_key, version, 77) + name + tail)


def test_header_of_version_1_ends_after_the_client_id() -> None:
    assert decode_header(header(HEARTBEAT, 0)) == RequestHeader(HEARTBEAT, 0, 77, "me", 12)
    assert decode_header(header(HEARTBEAT, 0, None)) == RequestHeader(HEARTBEAT, 0, 77, None, 10)
    assert decode_header(header(HEARTBEAT, 0, b"")).client_id == ""


def test_header_of_version_2_has_tagged_fields() -> None:
    assert decode_header(header(HEARTBEAT, 4, tail=b"\x00body")).body_at == 13
    tagged = b"\x02\x00\x03abc\x81\x01\x00"
    assert decode_header(header(HEARTBEAT, 4, tail=tagged + b"body")).body_at == 12 + len(tagged)


def test_header_of_more_than_64_tagged_fields_is_refused_unread() -> None:
    few = b"\x40" + b"\x00\x00" * 64
    assert decode_header(header(HEARTBEAT, 4, tail=few)).body_at == 12 + len(few)
    for many in (b"\x41" + b"\x00\x00" * 65, b"\x80\xad\xe2\x04"):
        with pytest.raises(MalformedRequest, match="tagged fields in one entity"):
            decode_header(header(HEARTBEAT, 4, tail=many))


def test_header_with_overlong_tagged_fields_or_client_id_is_refused() -> None:
    with pytest.raises(MalformedRequest, match="tagged fields of 5004 bytes in a header"):
        decode_header(header(HEARTBEAT, 4, tail=b"\x01\x00\x88\x27" + bytes(5000)))
    assert decode_header(header(HEARTBEAT, 0, b"x" * LONGEST_ID_BYTES)).body_at == 10 + LONGEST_ID_BYTES
    with pytest.raises(MalformedRequest, match="client_id of 1025 bytes"):
        decode_header(header(HEARTBEAT, 0, b"x" * (LONGEST_ID_BYTES + 1)))


def test_unknown_version_is_read_up_to_the_client_id() -> None:
    assert decode_header(header(HEARTBEAT, 999, tail=b"\xff")).body_at == 12
    assert decode_header(header(30000, -1)).correlation_id == 77


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"\x00" * 9,
        bytes(header(HEARTBEAT, 0))[:-1],
        struct.pack(">hhih", HEARTBEAT, 0, 1, -2),
        struct.pack(">hhih", HEARTBEAT, 0, 1, 32767),
        bytes(header(HEARTBEAT, 0, b"\xff\xfe")),
        bytes(header(HEARTBEAT, 4)),
        bytes(header(HEARTBEAT, 4, tail=b"\x01")),
        bytes(header(HEARTBEAT, 4, tail=b"\x01\x00\x09short")),
        bytes(header(HEARTBEAT, 4, tail=b"\xff\xff\xff\xff\xff\xff")),
    ],
)
def test_frame_that_is_shorter_than_its_header_says_is_malformed(frame: bytes) -> None:
    with pytest.raises(MalformedRequest):
        decode_header(memoryview(frame))


@given(st.binary(max_size=60))
def test_any_bytes_are_a_header_or_malformed(frame: bytes) -> None:
    with suppress(MalformedRequest):
        assert 10 <= decode_header(memoryview(frame)).body_at <= len(frame)


@given(st.sampled_from([FETCH, METADATA, HEARTBEAT, LIST_GROUPS]), st.integers(0, 13), st.binary(max_size=80))
def test_any_body_is_a_request_or_malformed(api_key: int, version: int, body: bytes) -> None:
    if not is_known(api_key, version):
        return
    frame = header(api_key, version, tail=b"\x00" * is_flexible(api_key, version) + body)
    with suppress(MalformedRequest):
        decode_request(decode_header(frame), frame)


def test_some_answers_have_a_top_level_error() -> None:
    assert has_top_level_error(FETCH, 7)
    assert not has_top_level_error(FETCH, 4)
    assert has_top_level_error(LIST_GROUPS, 0)
    assert not has_top_level_error(METADATA, 12)
