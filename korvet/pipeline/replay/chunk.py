"""Arrow's rows as the records of a transaction."""

from __future__ import annotations

import json
from base64 import b64decode
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa

from korvet.pipeline.errors import PipelineError

MOST_BYTES: Final = 16 * 1024 * 1024
"""Of a transaction, about."""

_SHOWN: Final = 200

Headers = list[tuple[str, str | bytes | None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Records of one transaction: their growing offsets in the source, and their contents by column.

    Columns of bytes and numbers cost Python's garbage collector nothing; a tuple for each record would.

    :param headers: Spark's JSON, or None for a record without headers.
    :param timestamps: ms since 1970.
    """

    offsets: list[int]
    keys: list[bytes | None]
    values: list[bytes | None]
    headers: list[str | None]
    timestamps: list[int]

    def since(self, offset: int) -> Chunk:
        """The part from that offset on."""
        first = bisect_left(self.offsets, offset)
        return self._part(slice(first, None)) if first else self

    def first(self, count: int) -> Chunk:
        """The first ``count`` records, or all."""
        return self._part(slice(count)) if count < len(self.offsets) else self

    def _part(self, rows: slice) -> Chunk:
        return replace(self, **{name: getattr(self, name)[rows] for name in self.__dataclass_fields__})


def chunks(batches: Iterable[pa.RecordBatch], most: Callable[[], int]) -> Iterator[Chunk]:
    """The rows in parts of about `MOST_BYTES`, and of at most ``most()`` records, called at the begin of each part."""
    parts: list[pa.RecordBatch] = []
    rows_left = bytes_left = 0
    for batch in batches:
        row_bytes = max(1, batch.nbytes // max(batch.num_rows, 1))
        begin = 0
        while begin < batch.num_rows:
            if parts and (rows_left <= 0 or bytes_left < row_bytes):
                yield _take(parts)
            if not parts:
                rows_left, bytes_left = most(), MOST_BYTES
            part = batch.slice(begin, max(1, min(rows_left, bytes_left // row_bytes)))
            parts.append(part)
            begin += part.num_rows
            rows_left -= part.num_rows
            bytes_left -= part.num_rows * row_bytes
    if parts:
        yield _take(parts)


def _take(parts: list[pa.RecordBatch]) -> Chunk:
    """The rows of these parts. Empties the list: while they are sent, Arrow keeps the last batch alone."""
    rows = pa.Table.from_batches(parts)
    parts.clear()
    return Chunk(
        offsets=rows.column("offset").to_pylist(),
        keys=rows.column("key").to_pylist(),
        values=rows.column("value").to_pylist(),
        headers=rows.column("headers").to_pylist(),
        timestamps=rows.column("ms").to_pylist(),
    )


def headers(text: str) -> Headers | None:
    """A record's headers, from Spark's JSON: ``[{"key": "name", "value": "base64, or missing if null"}]``.

    :raises PipelineError: if a header or its key is null, which no archive writes.
    """
    try:
        pairs = [(each["key"], each.get("value")) for each in json.loads(text)]
    except (KeyError, TypeError):
        raise PipelineError(
            f"a header without a key in the table: {text[:_SHOWN]}; headers have keys, so choose a range without it"
        ) from None
    return [(key, None if value is None else b64decode(value)) for key, value in pairs] or None
