"""The columns of a lake's tables."""

from __future__ import annotations

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
