"""Batches with every part that a record may have. This independent writer and reader checks korvet's own."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import cramjam
from crc32c import crc32c
from hypothesis import strategies as st

from korvet.wire.batch import CRC_FROM, HEADER, HEADER_BYTES, LENGTH_FROM, LOG_APPEND_TIME, LZ4, Batch
from korvet.wire.compress import compressed
from korvet.wire.records import decompressed, read_varint
from tests.oracle.batches import varint
from tests.support.times import MIDNIGHT_MS


class Whole(NamedTuple):
    """A record."""

    key: bytes | None = None
    value: bytes | None = b"value"
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp: int = MIDNIGHT_MS


class Placed(NamedTuple):
    """A record as a consumer gets it."""

    offset: int
    record: Whole
    attributes: int
    producer_id: int
    producer_epoch: int
    sequence: int


COMPRESS: dict[int, Callable[[bytes], bytes]] = {
    0: bytes,
    1: gzip.compress,
    2: lambda data: bytes(cramjam.snappy.compress_raw(data)),
    3: partial(compressed, LZ4),
    4: lambda data: bytes(cramjam.zstd.compress(data)),
}


def text(content: bytes | None) -> bytes:
    return varint(-1) if content is None else varint(len(content)) + content


def built(
    *records: Whole, codec: int = 0, producer: tuple[int, int, int] = (-1, -1, -1), attributes: int = 0
) -> tuple[Batch, bytes]:
    """A batch as a producer sends it; ``producer`` is id, epoch and base sequence."""
    base = records[0].timestamp
    body = b""
    for index, record in enumerate(records):
        inner = b"\0" + varint(record.timestamp - base) + varint(index) + text(record.key) + text(record.value)
        inner += varint(len(record.headers))
        inner += b"".join(text(name.encode()) + text(content) for name, content in record.headers)
        body += varint(len(inner)) + inner
    body = COMPRESS[codec](body)
    newest = max(record.timestamp for record in records)
    count = len(records)
    length = HEADER_BYTES - LENGTH_FROM + len(body)
    batch = Batch(0, length, -1, 2, 0, attributes | codec, count - 1, base, newest, *producer, count)
    batch = batch._replace(crc=crc32c((HEADER.pack(*batch) + body)[CRC_FROM:]))
    return batch, HEADER.pack(*batch) + body


def read(data: bytes) -> list[Placed]:
    """The records that consumers find in consecutive batches."""
    found: list[Placed] = []
    start = 0
    while start < len(data):
        batch = Batch._make(HEADER.unpack_from(data, start))
        end = start + batch.size_bytes
        assert crc32c(data[start + CRC_FROM : end]) == batch.crc
        plain, at = decompressed(batch.attributes & 7, data[start + HEADER_BYTES : end]), 0
        for _ in range(batch.records):
            delta, record, at = _record(plain, at, batch)
            sequence = -1 if batch.base_sequence < 0 else (batch.base_sequence + delta) % 2**31
            found.append(
                Placed(
                    batch.base_offset + delta, record, batch.attributes & ~7,
                    batch.producer_id, batch.producer_epoch, sequence,
                )
            )  # fmt: skip
        assert at == len(plain)
        assert found[-1].offset == batch.base_offset + batch.last_offset_delta
        start = end
    return found


def _record(plain: bytes, at: int, batch: Batch) -> tuple[int, Whole, int]:
    def taken() -> bytes | None:
        nonlocal at
        size, at = read_varint(plain, at)
        if size < 0:
            return None
        at += size
        return plain[at - size : at]

    size, at = read_varint(plain, at)
    end = at + size
    timestamp_delta, at = read_varint(plain, at + 1)
    offset_delta, at = read_varint(plain, at)
    key, value = taken(), taken()
    count, at = read_varint(plain, at)
    headers = tuple(((taken() or b"").decode(), taken()) for _ in range(count))
    assert at == end
    timestamp = batch.max_timestamp if batch.attributes & LOG_APPEND_TIME else batch.base_timestamp + timestamp_delta
    return offset_delta, Whole(key, value, headers, timestamp), at


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=6,
)
JSON_TEXTS = st.builds(
    lambda *args: _dumped(*args),
    st.dictionaries(st.text(max_size=5), _JSON, max_size=5), st.booleans(),
    st.sampled_from([(",", ":"), (", ", ": "), (" ,", ":")]), st.sampled_from([None, None, None, 1]),
)  # fmt: skip
TEXTS = st.none() | st.binary(max_size=20) | st.sampled_from([b"", b"v" * 63, b"v" * 64, b"v" * 8192])
VALUES = TEXTS | JSON_TEXTS | st.sampled_from([b"{}", b'{"a":1,"a":2}', b'{"a":1.0e5}', b'{"a":"\\/"}', b'{"a":NaN}'])
HEADERS = st.lists(st.tuples(st.text(max_size=5), TEXTS), max_size=3).map(tuple)
TIMES = st.integers(-1, 2**45)
WHOLES = st.builds(Whole, TEXTS, VALUES, HEADERS, TIMES)


def _dumped(content: object, is_ascii: bool, marks: tuple[str, str], indent: int | None) -> bytes:
    return json.dumps(content, ensure_ascii=is_ascii, separators=marks, indent=indent).encode("utf-8", "surrogatepass")
