"""Rows as Arrow batches, with the columns of Spark's Kafka source.

Source: KafkaRecordToRowConverter.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa
from confluent_kafka import TIMESTAMP_CREATE_TIME, Message
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

_COLUMNS: Final = (
    StructField("key", BinaryType()),
    StructField("value", BinaryType()),
    StructField("topic", StringType()),
    StructField("partition", IntegerType()),
    StructField("offset", LongType()),
    StructField("timestamp", TimestampType()),
    StructField("timestampType", IntegerType()),
)
_HEADERS: Final = StructField(
    "headers", ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))
)


def row_schema(*, include_headers: bool) -> StructType:
    """The columns ``key value topic partition offset timestamp timestampType`` and, if wanted, ``headers``."""
    return StructType([*_COLUMNS, *([_HEADERS] if include_headers else [])])


class RowBuilder:
    """Builds the Arrow batches of one partition."""

    def __init__(self, topic: str, partition: int, *, include_headers: bool) -> None:
        self._schema = to_arrow_schema(row_schema(include_headers=include_headers), timezone="UTC")
        self._topic = pa.scalar(topic, self._schema.field("topic").type)
        self._partition = pa.scalar(partition, self._schema.field("partition").type)
        self._include_headers = include_headers

    def build(self, messages: Sequence[Message]) -> pa.RecordBatch:
        """One row for each message. This is the hot path: Python handles columns, hardly single messages."""
        count = len(messages)
        stamps = [message.timestamp() for message in messages]
        columns = [
            pa.array([message.key() for message in messages], pa.binary()),
            pa.array([message.value() for message in messages], pa.binary()),
            pa.repeat(self._topic, count),
            pa.repeat(self._partition, count),
            pa.array([message.offset() for message in messages], pa.int64()),
            # Microseconds of milliseconds.
            pa.array([stamp[1] * 1_000 for stamp in stamps], pa.int64()).view(self._schema.field("timestamp").type),
            pa.array([stamp[0] - TIMESTAMP_CREATE_TIME for stamp in stamps], pa.int32()),
        ]
        if self._include_headers:
            columns.append(self._headers([message.headers() for message in messages]))
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def _headers(self, headers: Sequence[Any]) -> pa.Array:
        """A list of structs for each message; null if it has no headers."""
        column = self._schema.field("headers").type
        flat = [header for those in headers if those for header in those]
        ends: list[Any] = [0]
        for those in headers:
            ends.append(ends[-1] + len(those or ()))
        entries = pa.StructArray.from_arrays(
            [pa.array([name for name, _ in flat], pa.string()), pa.array([value for _, value in flat], pa.binary())],
            fields=list(column.value_type),
        )
        missing = pa.array([not those for those in headers])
        return pa.ListArray.from_arrays(pa.array(ends, pa.int32()), entries, type=column, mask=missing)
