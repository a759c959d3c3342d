"""Rows as Arrow batches, with the columns of Spark's Kafka source.

Source: KafkaRecordToRowConverter.
"""

from __future__ import annotations

import codecs
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from typing import Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
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
_US_OF_MS: Final = pa.scalar(1_000, pa.int64())
_MOST_MS: Final = (2**63 - 1) // 1_000
_replacing: Final = threading.Lock()
_FIRST_KIND: Final = pa.scalar(TIMESTAMP_CREATE_TIME, pa.int32())


def row_schema(*, include_headers: bool) -> StructType:
    """The columns ``key value topic partition offset timestamp timestampType`` and, if wanted, ``headers``."""
    return StructType([*_COLUMNS, *([_HEADERS] if include_headers else [])])


Header: TypeAlias = tuple[str, bytes | None]


@dataclass(frozen=True, slots=True)
class Columns:
    """Records of one partition. Timestamps are in milliseconds; their kinds are the client's numbers."""

    keys: list[bytes | None] = field(default_factory=list)
    values: list[bytes | None] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    kinds: list[int] = field(default_factory=list)
    stamps: list[int] = field(default_factory=list)
    headers: list[list[Header] | None] = field(default_factory=list)

    def extend(self, more: Columns) -> None:
        for column in fields(self):
            getattr(self, column.name).extend(getattr(more, column.name))


class RowBuilder:
    """Builds the Arrow batches of one partition."""

    def __init__(self, topic: str, partition: int, *, include_headers: bool) -> None:
        self._schema = to_arrow_schema(row_schema(include_headers=include_headers), timezone="UTC")
        self._topic = pa.scalar(topic, self._schema.field("topic").type)
        self._partition = pa.scalar(partition, self._schema.field("partition").type)
        self._include_headers = include_headers

    def build(self, messages: Sequence[Message]) -> pa.RecordBatch:
        """One row for each of at least one message. In this hot path Python calls nothing message by message."""
        kinds, stamps = zip(*map(Message.timestamp, messages), strict=True)
        keys: Any = list(map(Message.key, messages))
        values: Any = list(map(Message.value, messages))
        offsets: Any = list(map(Message.offset, messages))
        headers = headers_of(messages) if self._include_headers else []
        return self.of(Columns(keys, values, offsets, list(kinds), list(stamps), headers))

    def of(self, records: Columns) -> pa.RecordBatch:
        """One row for each record."""
        count = len(records.offsets)
        columns = [
            pa.array(records.keys, pa.binary()),
            pa.array(records.values, pa.binary()),
            pa.repeat(self._topic, count),
            pa.repeat(self._partition, count),
            pa.array(records.offsets, pa.int64()),
            _microseconds(pa.array(records.stamps, pa.int64())).view(self._schema.field("timestamp").type),
            pc.subtract(pa.array(records.kinds, pa.int32()), _FIRST_KIND),
        ]
        if self._include_headers:
            columns.append(self._headers(records.headers))
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def _headers(self, headers: Sequence[Any]) -> pa.Array:
        """A list of structs for each message; null if it has no headers."""
        column = self._schema.field("headers").type
        if not any(headers):
            return pa.nulls(len(headers), column)
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


def headers_of(messages: Sequence[Message]) -> list[Any]:
    """The headers of each message, as pairs of name and value; None if it has none.

    A name that is not UTF-8 is read as the Java client reads it: U+FFFD stands for the wrong bytes. The client has no
    other way to its bytes, and a failed ``headers()`` leaves a list that ends the process of its reader.
    """
    with _names_of_any_bytes():
        return list(map(Message.headers, messages))


@contextmanager
def _names_of_any_bytes() -> Iterator[None]:
    """Replace Python's handler of wrong bytes, which the client calls; a task's process runs nothing else meanwhile.

    A driver may read several topics at once.
    """
    with _replacing:
        codecs.register_error("strict", codecs.replace_errors)
        try:
            yield
        finally:
            codecs.register_error("strict", codecs.strict_errors)


def _microseconds(ms: pa.Array) -> pa.Array:
    """Times since 1970, within Spark's first and last one, 292,000 years away."""
    try:
        return pc.multiply_checked(ms, _US_OF_MS)
    except pa.ArrowInvalid:
        return pc.multiply(pc.min_element_wise(pc.max_element_wise(ms, -_MOST_MS), _MOST_MS), _US_OF_MS)
