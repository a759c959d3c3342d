"""A header of a batch's first record, from clients who may be hostile."""

from __future__ import annotations

import pytest
from aiokafka.record.default_records import DefaultRecordBatchBuilder

from korvet.wire.batch import HEADER_BYTES
from korvet.wire.compress import compressed
from korvet.wire.first_record import first_header

NAME = b"traceparent"
CODECS = range(5)


def batch(*headers: tuple[str, bytes], value: bytes = b"value", codec: int = 0) -> bytes:
    """A batch of two records; the first has the headers."""
    builder = DefaultRecordBatchBuilder(2, 0, 0, -1, -1, -1, 1 << 22)
    builder.append(0, 1, b"key", value, list(headers))
    builder.append(1, 2, None, None, [("traceparent", b"the second's")])
    data = bytearray(builder.build())
    data[22] = codec
    return bytes(data[:HEADER_BYTES]) + compressed(codec, bytes(data[HEADER_BYTES:]))


@pytest.mark.parametrize("codec", CODECS)
def test_header_of_the_first_record_is_found(codec: int) -> None:
    data = batch(("a", b"1"), ("traceparent", b"x"), ("traceparent", b"y"), codec=codec)
    assert first_header(data, NAME) == first_header(memoryview(data), NAME) == b"x"
    assert first_header(batch(codec=codec), NAME) is None


def test_large_records_are_not_opened() -> None:
    large = batch(("traceparent", b"x"), value=bytes(1 << 20))
    assert first_header(large, NAME) == b"x"
    for codec in CODECS[1:]:
        assert first_header(batch(("traceparent", b"x"), value=bytes(1 << 20), codec=codec), NAME) is None


def test_headers_after_a_hundred_others_are_not_looked_at() -> None:
    others = [("other", b"")] * 100
    assert first_header(batch(*others[1:], ("traceparent", b"x")), NAME) == b"x"
    assert first_header(batch(*others, ("traceparent", b"x")), NAME) is None


@pytest.mark.parametrize("codec", CODECS)
def test_damaged_batches_have_no_header(codec: int) -> None:
    data = batch(("traceparent", b"x"), codec=codec)
    for end in range(len(data)):
        assert first_header(data[:end], NAME) in (None, b"x")
    for at in range(HEADER_BYTES, len(data)):
        first_header(data[:at] + b"\xff" + data[at + 1 :], NAME)
