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
"""Columns of a raw table. ``date`` is the timestamp's day in UTC, and partitions the table."""


@dataclass(frozen=True, slots=True)
class Lake:
    """A directory of any file system that Spark knows, with a directory for each topic.

    :param checkpoints: a directory for the archives' checkpoints; None keeps them in the lake.
    """

    location: str
    checkpoints: str | None = None

    def raw(self, topic: str) -> str:
        """The table of all records, unchanged."""
        return self._place(topic, "raw")

    def typed(self, topic: str) -> str:
        """The table of the values that fit the topic's schema, as columns."""
        return self._place(topic, "typed")

    def dead_letters(self, topic: str) -> str:
        """The table of the records that do not fit it, with the reason."""
        return self._place(topic, "dead_letters")

    def checkpoint(self, topic: str) -> str:
        """The checkpoint of the topic's archive."""
        if self.checkpoints is not None:
            return f"{self.checkpoints.rstrip('/')}/{topic}"
        return self._place(topic, "_checkpoint")

    def _place(self, topic: str, name: str) -> str:
        return f"{self.location.rstrip('/')}/{topic}/{name}"
