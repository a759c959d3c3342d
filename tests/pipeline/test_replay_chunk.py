"""A chunk has all columns of its records, whole or from an offset on."""

from __future__ import annotations

import json
from base64 import b64encode

import pyarrow as pa
import pytest

from korvet.pipeline.errors import PipelineError
from korvet.pipeline.replay.chunk import MOST_BYTES, Chunk, chunks, headers

OFFSETS = (3, 4, 7, 9, 12)


def batch(offsets: tuple[int, ...], size_bytes: int = 1) -> pa.RecordBatch:
    """Rows as a task gets them, all contents made of the offset."""
    return pa.RecordBatch.from_pydict(
        {
            "partition": pa.array([0] * len(offsets), pa.int32()),
            "offset": pa.array(offsets, pa.int64()),
            "key": pa.array([b"key %d" % offset for offset in offsets], pa.binary()),
            "value": pa.array([(b"value %d" % offset).ljust(size_bytes) for offset in offsets], pa.binary()),
            "headers": pa.array([None if offset % 2 else f"headers {offset}" for offset in offsets], pa.string()),
            "ms": pa.array([1000 + offset for offset in offsets], pa.int64()),
        }
    )


def rows(chunk: Chunk) -> list[tuple[int, bytes | None, bytes | None, str | None, int]]:
    return list(zip(chunk.offsets, chunk.keys, chunk.values, chunk.headers, chunk.timestamps, strict=True))


def expected(offsets: tuple[int, ...]) -> list[tuple[int, bytes, bytes, str | None, int]]:
    return [
        (each, b"key %d" % each, b"value %d" % each, None if each % 2 else f"headers {each}", 1000 + each)
        for each in offsets
    ]


@pytest.mark.parametrize(
    ("since", "left"),
    [(0, OFFSETS), (3, OFFSETS), (4, OFFSETS[1:]), (5, OFFSETS[2:]), (12, OFFSETS[4:]), (13, ())],
)
def test_part_since_an_offset_has_the_rest_of_every_column(since: int, left: tuple[int, ...]) -> None:
    (whole,) = chunks([batch(OFFSETS)], lambda: 10)
    assert rows(whole.since(since)) == expected(left)


@pytest.mark.parametrize("count", [1, 4, 5, 6])
def test_first_part_has_the_beginning_of_every_column(count: int) -> None:
    (whole,) = chunks([batch(OFFSETS)], lambda: 10)
    assert rows(whole.first(count)) == expected(OFFSETS[:count])


def test_batch_comes_in_parts_of_the_most_records() -> None:
    assert [rows(part) for part in chunks([batch(OFFSETS)], lambda: 2)] == [
        expected(OFFSETS[:2]), expected(OFFSETS[2:4]), expected(OFFSETS[4:])
    ]  # fmt: skip


def test_batch_of_large_records_comes_in_parts_of_the_most_bytes() -> None:
    parts = list(chunks([batch(OFFSETS, size_bytes=MOST_BYTES // 2)], lambda: 10))
    assert [part.offsets for part in parts] == [[3], [4], [7], [9], [12]]


def test_part_has_rows_of_many_batches() -> None:
    sizes = iter([4, 2, 10])
    batches = [batch(OFFSETS[:1]), batch(()), batch(OFFSETS[1:3]), batch(OFFSETS[3:]), batch((20, 21, 22))]
    assert [rows(part) for part in chunks(batches, lambda: next(sizes))] == [
        expected(OFFSETS[:4]), expected((12, 20)), expected((21, 22))
    ]  # fmt: skip


def test_part_of_many_batches_has_no_more_than_the_most_bytes() -> None:
    batches = [batch((number,), size_bytes=MOST_BYTES * 2 // 5) for number in range(5)]
    assert [part.offsets for part in chunks(batches, lambda: 10)] == [[0, 1], [2, 3], [4]]


def test_part_ends_before_rows_that_are_larger_than_its_rest() -> None:
    batches = [batch((0, 1), size_bytes=MOST_BYTES // 4), batch((2,), size_bytes=MOST_BYTES * 3 // 4)]
    assert [part.offsets for part in chunks(batches, lambda: 10)] == [[0, 1], [2]]


def test_headers_keep_their_order_names_and_null_values() -> None:
    text = json.dumps([{"key": "b", "value": b64encode(b"\xff").decode()}, {"key": "a"}, {"key": "b", "value": ""}])
    assert headers(text) == [("b", b"\xff"), ("a", None), ("b", b"")]
    assert headers("[]") is None


@pytest.mark.parametrize("text", ['[{"key":"a"},{"value":"YQ=="}]', "[null]"])
def test_header_without_a_key_is_reported(text: str) -> None:
    with pytest.raises(PipelineError, match="a header without a key in the table"):
        headers(text)
