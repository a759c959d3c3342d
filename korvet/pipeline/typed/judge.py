"""Values of a topic with a JSON Schema, as rows of its typed table or reasons against it: Arrow in and out, no Spark.

The judge runs in the executors. It makes Python objects of a bounded number of bytes at a time.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import StringType, StructField, StructType

from korvet.configs.schema_keywords import PATIENCE, OutOfPatience
from korvet.configs.value_schema import ValueSchema
from korvet.pipeline.typed.columns import columns
from korvet.pipeline.typed.convert import member_converters, row_converter
from korvet.pipeline.typed.numbers import may_round, with_texts
from korvet.pipeline.typed.shapes import Rows, Shapes
from korvet.pipeline.typed.table import has_exact_numbers, named

MOST_REASON: Final = 500
MOST_KEYWORDS: Final = 10_000_000
"""Keywords that one value may take, about ten seconds. The judge counts, so that each run has the same outcome."""
_MOST_RUN_BYTES: Final = 8 << 20
"""Bytes of values that are Python objects at once; the objects take about twenty times as much."""

Row = tuple[Any, ...]


class ValueJudge(ABC):
    """Judges by a table's columns, and by schemas, whether a record is a row or a dead letter.

    :param own: the typed table's columns besides `ABOUT`.
    """

    def __init__(self, own: StructType) -> None:
        self._own = to_arrow_type(own, timezone="UTC")

    @abstractmethod
    def row(self, value: bytes | None) -> Row | None:
        """The columns of a value; None for a tombstone.

        :raises ValueError: if it is a dead letter; the text says why.
        """

    def verdicts(self, values: pa.Array) -> pa.StructArray:
        """A struct (`verdict`) for each value, in their order."""
        return pa.concat_arrays([self._verdicts(run.to_pylist()) for run in _runs(values)])

    def _sure_rows(self, values: Sequence[bytes | None]) -> list[Rows]:
        """Rows of the values that are sure to fit."""
        return []

    def _verdicts(self, values: Sequence[bytes | None]) -> pa.StructArray:
        sure = self._sure_rows(values)
        indexes = [index for those, _ in sure for index in those]
        parts = [_verdicts(pa.nulls(len(those), pa.string()), rows) for those, rows in sure]
        if len(indexes) < len(values):
            known = set(indexes)
            left = [index for index in range(len(values)) if index not in known]
            rows, reasons = self._judged([values[index] for index in left])
            indexes += left
            parts.append(_verdicts(pa.array(reasons, pa.string()), pa.array(rows, self._own)))
        return _in_order(indexes, parts) if parts else _verdicts(pa.nulls(0, pa.string()), pa.array([], self._own))

    def _judged(self, values: Sequence[bytes | None]) -> tuple[list[Row | None], list[str | None]]:
        rows: list[Row | None] = []
        reasons: list[str | None] = []
        for value in values:
            row, reason = None, None
            try:
                row = self.row(value)
            except (ValueError, ArithmeticError) as error:
                # An unforeseen value stops no topic.
                reason = _short(str(error))
            rows.append(row)
            reasons.append(reason)
        return rows, reasons


class Judge(ValueJudge):
    """Judges values by a JSON Schema."""

    def __init__(self, schema_text: str, own: StructType) -> None:
        super().__init__(own)
        self._schema = ValueSchema(schema_text)
        wanted = named(columns(schema_text))
        self._convert = row_converter(own, wanted)
        shortcut = self._schema.member_shortcut
        members = member_converters(own, wanted)
        is_exact = has_exact_numbers(own)
        self._shapes = None if shortcut is None else Shapes(shortcut, members, self._own, is_exact=is_exact)

    def verdicts(self, values: pa.Array) -> pa.StructArray:
        PATIENCE.begin(most_keywords=MOST_KEYWORDS)
        return super().verdicts(values)

    def _sure_rows(self, values: Sequence[bytes | None]) -> list[Rows]:
        return [] if self._shapes is None else self._shapes.rows(values)

    def row(self, value: bytes | None) -> Row | None:
        if value is None:
            return None
        PATIENCE.begin_again()
        try:
            parsed = self._schema.parsed(value)
            row: Row = self._convert(with_texts(value) if may_round(value) else parsed)
        except OutOfPatience:
            raise ValueError(f"it takes more than {MOST_KEYWORDS} keywords to judge") from None
        return row


def verdict(own: StructType) -> StructType:
    """The type of a verdict: the reason why a value is a dead letter, or else its row. A tombstone has neither."""
    return StructType([StructField("reason", StringType()), StructField("row", own)])


def _verdicts(reasons: pa.Array, rows: pa.Array) -> pa.StructArray:
    return pa.StructArray.from_arrays([reasons, rows], _NAMES)


def _in_order(indexes: Sequence[int], parts: Sequence[pa.Array]) -> pa.Array:
    """The parts as one array, in the order of the values' indexes."""
    if len(parts) == 1:
        return parts[0]
    return pa.concat_arrays(parts).take(pc.sort_indices(pa.array(indexes)))


def _runs(values: pa.Array) -> Iterator[pa.Array]:
    """Slices with `_MOST_RUN_BYTES` of values, or one value more."""
    start = size_bytes = 0
    for index, length in enumerate(pc.binary_length(values).to_pylist()):
        size_bytes += length or 0
        if size_bytes >= _MOST_RUN_BYTES:
            yield values.slice(start, index + 1 - start)
            start, size_bytes = index + 1, 0
    yield values.slice(start)


def _short(reason: str) -> str:
    # Names of members may hold half of a surrogate pair, which no table takes.
    reason = reason.encode(errors="backslashreplace").decode()
    return reason if len(reason) <= MOST_REASON else f"{reason[: MOST_REASON - 1]}…"


_NAMES: Final = verdict(StructType()).names
