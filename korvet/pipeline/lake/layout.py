"""The columns of a lake's tables."""

from __future__ import annotations

from typing import Final

from pyspark.sql.types import DateType, StructField, StructType

from korvet.pipeline.source.rows import row_schema

_NAMES: Final = ("key", "value", "headers", "topic", "partition", "offset", "timestamp", "timestampType")
RAW_COLUMNS: Final = StructType(
    [*(row_schema(include_headers=True)[name] for name in _NAMES), StructField("date", DateType())]
)
"""Columns of the records. ``date`` is the timestamp's day in UTC, which partitions tables of korvet up to 0.6."""
ARCHIVED: Final = "_archived"
"""The last column of each table: the day in UTC on which the archive wrote the row. It partitions the table.

Records of one batch may be of thousands of days. Partitioned by record day, each day would be a file.
"""
