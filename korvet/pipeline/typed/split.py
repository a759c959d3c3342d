"""A batch of records in two: rows of the typed table, and dead letters with the reason.

Each value is judged by the broker's own judge, in the executors. Both parts are read from what it says, so that a
record is in exactly one of them.
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
    """What became of a batch: each record is in one of the two. Persist ``judged``, and each is judged only once."""

    typed: DataFrame
    """Rows of the typed table: `ABOUT`, and the schema's columns."""
    dead_letters: DataFrame
    """Records as they came, and the reason why they are here."""
    judged: DataFrame
    """What both are read from: structs ``typed`` and ``dead_letter``, one of which is null."""


def split(batch: DataFrame, schema_text: str, table_type: StructType | None) -> Split:
    """Split a batch of records by its topic's schema.

    Null values, tombstones, are rows whose columns are null. A dead letter's value is not JSON, does not fit the
    schema, or does not fit the table's columns.

    :param batch: has the columns `RAW_COLUMNS`.
    :param table_type: the typed table's, where it exists. Its columns come first and keep their types; what the schema
        has besides is added, also within structs, so that ``typed`` is appended with ``mergeSchema``.
    :raises PipelineError: where the schema gives no columns (see `columns`).
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
    """Made once in each process; ``own`` is a type as JSON."""
    return Judge(schema_text, StructType.fromJson(json.loads(own)))
