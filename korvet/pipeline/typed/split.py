"""A batch of records in two parts: rows of the typed table, and dead letters with the reason.

The broker's own judge looks at each value, in the executors. Both parts are read from its verdicts, so a record is in
exactly one of them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache, partial

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import StructField, StructType

from korvet.pipeline.lake import RAW_COLUMNS
from korvet.pipeline.typed.columns import columns
from korvet.pipeline.typed.judge import Judge
from korvet.pipeline.typed.table import ABOUT, DEAD_LETTER, grown, named, without_about


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """The two parts of a batch. Persist ``judged``, and the judge looks at each record only once."""

    typed: DataFrame
    """Rows of the typed table: `ABOUT`, and the schema's columns."""
    dead_letters: DataFrame
    """Raw records, each with the reason why it is a dead letter."""
    judged: DataFrame
    """The verdicts: structs ``typed`` and ``dead_letter``, one of which is null."""


def split(batch: DataFrame, schema_text: str, table_type: StructType | None) -> Split:
    """Split a batch of records by its topic's schema.

    Null values, tombstones, are rows whose columns are null. A dead letter's value is not JSON, does not fit the
    schema, or does not fit the table's columns.

    :param batch: has the columns `RAW_COLUMNS`.
    :param table_type: the typed table's type, if it exists. Its columns come first and keep their types; the schema's
        other columns follow, also within structs. So append ``typed`` with ``mergeSchema``.
    :raises PipelineError: if the schema gives no columns (see `columns`).
    """
    own = named(columns(schema_text))
    if table_type is not None:
        own = grown(without_about(table_type), own)
    typed = StructField("typed", StructType([*ABOUT.fields, *own.fields]))
    both = StructType([typed, StructField("dead_letter", DEAD_LETTER)])
    judged = batch.select(*RAW_COLUMNS.names).mapInArrow(partial(_judge, schema_text, own.json()), both)
    return Split(
        typed=judged.where("typed is not null").select("typed.*"),
        dead_letters=judged.where("dead_letter is not null").select("dead_letter.*"),
        judged=judged,
    )


def _judge(schema_text: str, own: str, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    judge = _made_judge(schema_text, own)
    for batch in batches:
        yield from judge.judge(batch)


@lru_cache(maxsize=64)
def _made_judge(schema_text: str, own: str) -> Judge:
    """A judge, made once in each process; ``own`` is a type as JSON."""
    return Judge(schema_text, StructType.fromJson(json.loads(own)))
