"""A batch of records in two parts: rows of the typed table, and dead letters with the reason.

The broker's own judge looks at each value, in the executors. Both parts are read from its verdicts, so a record is in
exactly one of them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.types import DateType, StructField, StructType

from korvet.pipeline.errors import PipelineError
from korvet.pipeline.lake import ARCHIVED, RAW_COLUMNS
from korvet.pipeline.registry import Registered, registry
from korvet.pipeline.typed.columns import columns
from korvet.pipeline.typed.judge import Judge, ValueJudge, verdict
from korvet.pipeline.typed.table import ABOUT, grown, inexact_longs, is_wider, named, without_about

_VERDICT: Final = "verdict"


def table_type(schema_text: str, table: StructType | None) -> StructType:
    """The type of the typed table for a schema: `ABOUT`, the schema's columns, and `ARCHIVED`.

    :param table: the table's type up to now, if it exists. Its columns come first and keep their types, but for
        longs that become doubles; the schema's other columns follow, also within structs.
    :raises PipelineError: if the schema gives no columns (see `columns`).
    """
    own = named(columns(schema_text))
    if table is not None:
        own = grown(without_about(table), own)
    return StructType([*ABOUT, *own, StructField(ARCHIVED, DateType())])


def judged(
    records: DataFrame, schema_text: str | None, registry_url: str | None, table: StructType | None
) -> tuple[StructType, DataFrame] | None:
    """The typed table's type, and the records with their verdicts; None if they have no schemas, and there is no table.

    :param schema_text: a JSON Schema. Without one, and with a registry, the values are Avro of the registry's schemas.
    :param table: the table's type up to now, if it exists.
    :raises PipelineError: also `Passing`, if the registry does not answer.
    """
    if schema_text is not None:
        verdicts = JsonVerdicts(schema_text, table_type(schema_text, table))
        return verdicts.table, verdicts.on(records)
    if registry_url is None:
        return None
    schemas = registry(registry_url)
    from korvet.pipeline.typed.avro import schema_ids

    found = schemas.schemas(schema_ids(records))
    of_avro = _avro_table_type(found, table)
    return None if of_avro is None else (of_avro, _with_avro_verdicts(records, found, of_avro))


def _avro_table_type(found: Mapping[int, Registered], table: StructType | None) -> StructType | None:
    """The type of the typed table for Avro schemas, as `table_type`; None if neither they nor a table give columns."""
    from korvet.pipeline.typed.avro import json_schemas

    for text in json_schemas(found).values():
        table = table_type(text, table)
    if table is None:
        return None
    return StructType([*ABOUT, *grown(without_about(table), StructType()), StructField(ARCHIVED, DateType())])


def widened(rows: DataFrame, wanted: StructType) -> DataFrame | None:
    """A typed table's rows in their new `table_type`; None if the table can grow into it without a rewrite.

    :raises PipelineError: if it has integers that would be rounded.
    """
    before, after = without_about(rows.schema), without_about(wanted)
    if not is_wider(after, before):
        return None
    for rounded in inexact_longs(before, after, ""):
        if rows.where(rounded).limit(1).count():
            raise PipelineError(
                f"integers become numbers by the schema, and a double would round some of the table ({rounded}): give "
                "the schema multipleOf, for decimals, or run 'korvet pipeline retype', which makes dead letters of them"
            )
    return rows.to(wanted)


@dataclass(frozen=True, slots=True)
class JsonVerdicts:
    """The column of verdicts by a JSON Schema, for `typed_rows` and `dead_letters`.

    A dead letter's value is not JSON, does not fit the schema, or does not fit the table's columns.

    :param table: the typed table's type for this schema (`table_type`). Append typed rows with ``mergeSchema``.
    """

    schema_text: str
    table: StructType

    @property
    def field(self) -> StructField:
        return StructField(_VERDICT, verdict(without_about(self.table)))

    def of(self, values: pa.Array) -> pa.Array:
        """The verdicts on these values, made in this process."""
        return _json_judge(self.schema_text, without_about(self.table).json()).verdicts(values)

    def on(self, batch: DataFrame) -> DataFrame:
        """The records of a batch with their verdicts. Persist it, and the judge looks at each record only once.

        :param batch: has the columns `RAW_COLUMNS`, and `ARCHIVED` if it is of a raw table; rows and dead letters keep
            it.
        """
        own = without_about(self.table)
        return batch.withColumn(_VERDICT, _verdict(partial(_json_judge, self.schema_text, own.json()), own))


def _with_avro_verdicts(batch: DataFrame, found: Mapping[int, Registered], table: StructType) -> DataFrame:
    """The records of a batch with the verdicts by the Avro schemas that wrote their values, as `JsonVerdicts.on`."""
    own = without_about(table)
    return batch.withColumn(_VERDICT, _verdict(partial(_avro_judge, tuple(found.values()), own.json()), own))


def typed_rows(judged: DataFrame) -> DataFrame:
    """Rows of the typed table: `ABOUT`, and the schema's columns, which are null for tombstones."""
    return judged.where("verdict.reason is null").select(*_about(), "verdict.row.*", *_day(judged))


def dead_letters(judged: DataFrame) -> DataFrame:
    """Raw records, each with the reason why it is a dead letter."""
    return judged.where("verdict.reason is not null").select(*RAW_COLUMNS.names, "verdict.reason", *_day(judged))


def _day(judged: DataFrame) -> list[str]:
    """The column of the day on which the records were archived, if they were."""
    return [name for name in judged.columns if name == ARCHIVED]


def _about() -> list[Column]:
    """The columns `ABOUT` of a record."""
    columns = {field.name: F.col(field.name.removeprefix("_")) for field in ABOUT if field.name != "_is_tombstone"}
    columns["_is_tombstone"] = F.col("value").isNull()
    return [columns[name].alias(name) for name in ABOUT.names]


def _verdict(made: Callable[[], ValueJudge], own: StructType) -> Column:
    """The verdict of a value.

    :param made: makes the judge, once in each process.
    """

    def judge(values: pa.Array) -> pa.Array:
        return made().verdicts(values)

    # Its stub wants an argument for the function's type. At run time that argument warns that the hints suffice.
    make: Any = arrow_udf
    found: Column = make(judge, verdict(own))("value")
    return found


@lru_cache(maxsize=64)
def _json_judge(schema_text: str, own: str) -> Judge:
    """``own`` is a type as JSON."""
    return Judge(schema_text, StructType.fromJson(json.loads(own)))


@lru_cache(maxsize=64)
def _avro_judge(schemas: tuple[Registered, ...], own: str) -> ValueJudge:
    # Workers for JSON do without fastavro.
    from korvet.pipeline.typed.avro import AvroJudge

    return AvroJudge({each.id: each for each in schemas}, StructType.fromJson(json.loads(own)))
