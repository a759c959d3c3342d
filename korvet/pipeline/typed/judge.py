"""Records of a topic with a JSON Schema, as rows of its typed table or dead letters: Arrow in, Arrow out, no Spark job.

The judge runs in the executors. It makes Python objects of so many values at a time that memory is bounded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import StructType

from korvet.configs.schema_keywords import PATIENCE, OutOfPatience
from korvet.configs.value_schema import ValueSchema
from korvet.pipeline.lake import RAW_COLUMNS
from korvet.pipeline.typed.columns import columns
from korvet.pipeline.typed.convert import row_converter
from korvet.pipeline.typed.table import ABOUT, DEAD_LETTER, named

MOST_REASON: Final = 500
MOST_KEYWORDS: Final = 10_000_000
"""Keywords that one value may take, about ten seconds. The judge counts, so that each run has the same outcome."""
_MOST_RUN_BYTES: Final = 8 << 20
"""Bytes of values that are Python objects at once; the objects take about twenty times as much."""

Row = tuple[Any, ...]


class Judge:
    """Judges by a schema and a table's columns whether a record is a row or a dead letter.

    :param own: the typed table's columns besides `ABOUT`.
    """

    def __init__(self, schema_text: str, own: StructType) -> None:
        self._schema = ValueSchema(schema_text)
        self._convert = row_converter(own, named(columns(schema_text)))
        self._own = _arrow(own)

    def row(self, value: bytes | None) -> Row | None:
        """The columns of a value; None for a tombstone.

        :raises ValueError: if it is a dead letter; the text says why.
        """
        if value is None:
            return None
        PATIENCE.begin(most_keywords=MOST_KEYWORDS)
        try:
            row: Row = self._convert(self._schema.parsed(value))
        except OutOfPatience:
            raise ValueError(f"it takes more than {MOST_KEYWORDS} keywords to judge") from None
        return row

    def judge(self, records: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """The structs ``typed`` and ``dead_letter`` of records (`RAW_COLUMNS`); one of the two is null."""
        for run in _runs(records):
            rows, reasons = self._rows(run.column("value").to_pylist())
            yield pa.record_batch(
                [self._typed(run, rows, reasons), _dead_letters(run, reasons)], ["typed", "dead_letter"]
            )

    def _rows(self, values: Sequence[bytes | None]) -> tuple[list[Row | None], list[str | None]]:
        rows: list[Row | None] = []
        reasons: list[str | None] = []
        for value in values:
            row, reason = None, None
            try:
                row = self.row(value)
            except ValueError as error:
                reason = _short(str(error))
            rows.append(row)
            reasons.append(reason)
        return rows, reasons

    def _typed(self, records: pa.RecordBatch, rows: list[Row | None], reasons: list[str | None]) -> pa.StructArray:
        found = {f"_{name}": column for name, column in zip(records.schema.names, records.columns, strict=True)}
        found |= {"date": found["_date"], "_is_tombstone": found["_value"].is_null()}
        about = [found[field.name].cast(field.type) for field in _ABOUT]
        own = pa.array(rows, self._own).flatten()
        is_dead = pa.array([reason is not None for reason in reasons])
        return pa.StructArray.from_arrays([*about, *own], fields=[*_ABOUT, *self._own], mask=is_dead)


def _dead_letters(records: pa.RecordBatch, reasons: list[str | None]) -> pa.StructArray:
    # All other records are null, so that their bytes are not carried along.
    indexes = pa.array([None if reason is None else index for index, reason in enumerate(reasons)], pa.int64())
    raw = [records.column(name).take(indexes).cast(_DEAD_LETTER.field(name).type) for name in RAW_COLUMNS.names]
    return pa.StructArray.from_arrays(
        [*raw, pa.array(reasons, pa.string())], fields=list(_DEAD_LETTER), mask=indexes.is_null()
    )


def _runs(records: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Slices with `_MOST_RUN_BYTES` of values, or one value more."""
    start = size_bytes = 0
    for index, length in enumerate(pc.binary_length(records.column("value")).to_pylist()):
        size_bytes += length or 0
        if size_bytes >= _MOST_RUN_BYTES:
            yield records.slice(start, index + 1 - start)
            start, size_bytes = index + 1, 0
    if start < records.num_rows:
        yield records.slice(start)


def _short(reason: str) -> str:
    # Names of members may hold half of a surrogate pair, which no table takes.
    reason = reason.encode(errors="backslashreplace").decode()
    return reason if len(reason) <= MOST_REASON else f"{reason[: MOST_REASON - 1]}…"


def _arrow(kind: StructType) -> pa.StructType:
    return to_arrow_type(kind, timezone="UTC")


_ABOUT: Final = _arrow(ABOUT)
_DEAD_LETTER: Final = _arrow(DEAD_LETTER)
