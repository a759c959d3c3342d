"""The directories of a lake's tables, and the columns of its raw tables."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DateType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

_HEADER: Final = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
RAW_COLUMNS: Final = StructType(
    [
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("headers", ArrayType(_HEADER)),
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("timestamp", TimestampType()),
        StructField("timestampType", IntegerType()),
        StructField("date", DateType()),
    ]
)
"""Columns of the records. ``date`` is the timestamp's day in UTC, which partitions tables of korvet up to 0.6."""
ARCHIVED: Final = "_archived"
"""The last column of each table: the day in UTC on which the archive wrote the row. It partitions the table.

Records of one batch may be of thousands of days. Partitioned by record day, each day would be a file.
"""


@dataclass(frozen=True, slots=True)
class Lake:
    """A directory of any file system that Spark knows, with a directory for each topic."""

    location: str

    def raw(self, topic: str) -> str:
        """The table of all records, unchanged."""
        return self._place(topic, "raw")

    def typed(self, topic: str) -> str:
        """The table of the values that fit the topic's schema, as columns."""
        return self._place(topic, "typed")

    def dead_letters(self, topic: str) -> str:
        """The table of the records that do not fit it, with the reason."""
        return self._place(topic, "dead_letters")

    def latest(self, topic: str) -> str:
        """The table of each key's newest record."""
        return self._place(topic, "latest")

    def _place(self, topic: str, name: str) -> str:
        return f"{self.location.rstrip('/')}/{topic}/{name}"
