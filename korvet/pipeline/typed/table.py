"""The tables of a topic with a JSON Schema, and the growth of the typed table with the schema."""

from __future__ import annotations

from typing import Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from korvet.pipeline.lake import ARCHIVED, RAW_COLUMNS
from korvet.pipeline.typed.columns import JSON_TEXT, fold

DEAD_LETTER: Final = StructType([*RAW_COLUMNS.fields, StructField("reason", StringType())])
"""Columns of dead letters: the raw record, and the reason."""
UNREADABLE: Final = "timestamp is null"
"""The condition of dead letters that stand for records which cannot be read, and so are not in the raw table."""
ABOUT: Final = StructType(
    [
        StructField("_key", BinaryType()),
        StructField("_partition", IntegerType()),
        StructField("_offset", LongType()),
        StructField("_timestamp", TimestampType()),
        StructField("_is_tombstone", BooleanType()),
        StructField("date", DateType()),
    ]
)
"""The columns of every typed table, before the schema's."""
TABLE_PROPERTIES: Final = {"delta.columnMapping.mode": "name"}
"""Properties of a typed table, which allow any column name."""
_TAKEN: Final = frozenset(fold(name) for name in (*ABOUT.names, ARCHIVED))


def column_name(property_name: str) -> str:
    """The column of a property of the whole value. A name of `ABOUT`, or `ARCHIVED`, gets one more underscore.

    So does such a name with underscores after it, so that no two properties ever get one column.
    """
    return f"{property_name}_" if fold(property_name).rstrip("_") in _TAKEN else property_name


def property_name(column: str) -> str:
    """The property of a column: the inverse of `column_name`."""
    return column[:-1] if fold(column).rstrip("_") in _TAKEN else column


def named(wanted: StructType) -> StructType:
    """A schema's columns with their names in the table."""
    return StructType([StructField(column_name(each.name), each.dataType, metadata=each.metadata) for each in wanted])


def without_about(table: StructType) -> StructType:
    """A typed table's columns for its schema's properties."""
    return StructType([field for field in table.fields if fold(field.name) not in _TAKEN])


def grown(table: StructType, wanted: StructType) -> StructType:
    """The table's columns, then the wanted ones that it lacks, also in structs and arrays of structs.

    A long whose property is a number now becomes a double, or a decimal that holds all longs. All other columns keep
    their types.
    """
    by_name = {fold(field.name): field for field in wanted.fields}
    fields = []
    for field in table.fields:
        other = by_name.pop(fold(field.name), None)
        kept = field.dataType if other is None else _grown_type(field.dataType, other.dataType)
        # Delta's own metadata is left out.
        fields.append(StructField(field.name, kept, metadata=_own_metadata(field)))
    return StructType([*fields, *by_name.values()])


def _grown_type(table: DataType, wanted: DataType) -> DataType:
    if isinstance(table, StructType) and isinstance(wanted, StructType):
        return grown(table, wanted)
    if isinstance(table, ArrayType) and isinstance(wanted, ArrayType):
        return ArrayType(_grown_type(table.elementType, wanted.elementType))
    if isinstance(table, LongType) and isinstance(wanted, DecimalType) and wanted.precision - wanted.scale >= 19:
        return wanted
    return wanted if isinstance(table, LongType) and isinstance(wanted, DoubleType) else table


def is_wider(grown: DataType, table: DataType) -> bool:
    """True if a table must be rewritten to become ``grown``: new columns and members need no rewriting."""
    if isinstance(table, StructType) and isinstance(grown, StructType):
        return any(is_wider(grown[field.name].dataType, field.dataType) for field in table)
    if isinstance(table, ArrayType) and isinstance(grown, ArrayType):
        return is_wider(grown.elementType, table.elementType)
    return grown != table


def inexact_longs(before: DataType, after: DataType, place: str) -> list[str]:
    """SQL expressions, one for each column of longs that become doubles: true in rows that would be rounded.

    :param place: the expression of the value with these types.
    """
    if isinstance(before, StructType) and isinstance(after, StructType):
        found: list[str] = []
        for field in before:
            member = f"{place}.{_quoted(field.name)}".removeprefix(".")
            found += inexact_longs(field.dataType, after[field.name].dataType, member)
        return found
    if isinstance(before, ArrayType) and isinstance(after, ArrayType):
        name = f"x{len(place)}"
        inner = inexact_longs(before.elementType, after.elementType, name)
        return [f"exists({place}, {name} -> coalesce({each}, false))" for each in inner]
    if isinstance(before, LongType) and isinstance(after, DoubleType):
        return [f"cast(cast({place} as double) as decimal(38, 0)) <> {place}"]
    return []


def _quoted(name: str) -> str:
    escaped = name.replace("`", "``")
    return f"`{escaped}`"


def has_exact_numbers(kind: DataType) -> bool:
    """True if some columns need each digit of a number: decimals, and texts of JSON."""
    if isinstance(kind, StructType):
        return any(is_json_text(field) or has_exact_numbers(field.dataType) for field in kind)
    return has_exact_numbers(kind.elementType) if isinstance(kind, ArrayType) else isinstance(kind, DecimalType)


def is_json_text(field: StructField) -> bool:
    return JSON_TEXT in field.metadata


def _own_metadata(field: StructField) -> dict[str, bool] | None:
    return {JSON_TEXT: True} if is_json_text(field) else None
