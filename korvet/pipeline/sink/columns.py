"""The columns that turn a row into a record, and Arrow's rows as records.

Columns and checks are those of Spark's KafkaWriter, plus the column `timestamp`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import repeat
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from korvet.pipeline.errors import PipelineError

Headers = list[tuple[str, str | bytes | None]]
Record = tuple[str, bytes | str | None, bytes | str | None, int, int, Headers | None]
"""Topic, value, key, partition or -1, timestamp in ms or 0, headers: a producer's arguments in its order."""

_UNSET_PARTITION: Final = -1
_NOW: Final = 0
_HEADERS: Final = ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))
_ALLOWED: Final[dict[str, tuple[DataType, ...]]] = {
    "topic": (StringType(),),
    "key": (StringType(), BinaryType()),
    "value": (StringType(), BinaryType()),
    "headers": (_HEADERS,),
    "partition": (IntegerType(),),
    "timestamp": (TimestampType(),),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """The index of each of a record's columns in a row, by the column's name.

    :param topic: every record's topic, instead of the column of that name.
    """

    indexes: dict[str, int]
    topic: str | None

    def records(self, batch: pa.RecordBatch) -> Iterator[Record]:
        """The rows as records, in their order.

        :raises PipelineError: if a row has no topic, a negative partition, or a time before 1970.
        """
        values = batch.column(self.indexes["value"]).to_pylist()
        return zip(
            self._topics(batch),
            values,
            self._list(batch, "key"),
            self._partitions(batch),
            self._timestamps_ms(batch),
            self._headers(batch),
            strict=False,  # The default of a missing column repeats without end.
        )

    def _topics(self, batch: pa.RecordBatch) -> Iterable[str]:
        if self.topic is not None:
            return repeat(self.topic)
        column = batch.column(self.indexes["topic"])
        if column.null_count:
            raise PipelineError(
                "null topic present in the data. Use the topic option for setting a topic for all records."
            )
        topics: list[str] = column.to_pylist()
        return topics

    def _list(self, batch: pa.RecordBatch, name: str) -> Iterable[Any]:
        if name not in self.indexes:
            return repeat(None)
        values: list[Any] = batch.column(self.indexes[name]).to_pylist()
        return values

    def _partitions(self, batch: pa.RecordBatch) -> Iterable[int]:
        if "partition" not in self.indexes:
            return repeat(_UNSET_PARTITION)
        column = batch.column(self.indexes["partition"])
        least = pc.min(column).as_py()
        if least is not None and least < 0:
            raise PipelineError(
                f"partition {least} in the data: it must be 0 or more, or null for the producer's choice"
            )
        partitions: list[int] = column.fill_null(_UNSET_PARTITION).to_pylist()
        return partitions

    def _timestamps_ms(self, batch: pa.RecordBatch) -> Iterable[int]:
        if "timestamp" not in self.indexes:
            return repeat(_NOW)
        microseconds = batch.column(self.indexes["timestamp"]).cast(pa.timestamp("us", "UTC")).cast(pa.int64())
        column = pc.divide(microseconds, 1000)
        least = pc.min(column).as_py()
        if least is not None and least <= _NOW:
            raise PipelineError(
                f"timestamp {least} ms since 1970 in the data: it must be 1 or more, since 0 means now to the client; "
                "leave it null for the time of writing"
            )
        timestamps: list[int] = column.fill_null(_NOW).to_pylist()
        return timestamps

    def _headers(self, batch: pa.RecordBatch) -> Iterable[Headers | None]:
        if "headers" not in self.indexes:
            return repeat(None)
        column = batch.column(self.indexes["headers"])
        if pc.struct_field(column.flatten(), 0).null_count:
            raise PipelineError("a header with a null key in the data: headers have keys; their values may be null")
        return [
            None if headers is None else [(header["key"], header["value"]) for header in headers]
            for headers in column.to_pylist()
        ]


def columns(schema: StructType, topic: str | None) -> Columns:
    """The columns of records in a schema; the sink ignores others.

    :param topic: the option of that name.
    :raises PipelineError: if a column is missing or of another type.
    """
    if topic is None and "topic" not in schema.names:
        raise PipelineError(
            "topic option required when no 'topic' attribute is present. Use the topic option for setting a topic."
        )
    if "value" not in schema.names:
        raise PipelineError("Required attribute 'value' not found")
    indexes = {name: schema.names.index(name) for name in _ALLOWED if name in schema.names}
    for name, index in indexes.items():
        if not (name == "topic" and topic is not None):
            _check_type(name, schema.fields[index].dataType)
    return Columns(indexes=indexes, topic=topic)


def _check_type(name: str, found: DataType) -> None:
    wanted = [allowed.simpleString() for allowed in _ALLOWED[name]]
    if found.simpleString() not in wanted:
        raise PipelineError(
            f"{name} attribute unsupported type {found.simpleString()}. {name} must be a(n) {' or '.join(wanted)}"
        )
