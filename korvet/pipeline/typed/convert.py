"""JSON values as rows of a table: a converter for each column's type, made once for the table.

The value and the type of the table's column decide, not the present schema. A column keeps its type when the schema
changes, and takes the values that fit it.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime
from decimal import Context, Decimal, Inexact, InvalidOperation
from typing import Any, Final

from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from korvet.pipeline.typed.columns import fold
from korvet.pipeline.typed.numbers import Written, json_text
from korvet.pipeline.typed.table import is_json_text, property_name

Convert = Callable[[Any], Any]
"""A converter of values that are not null; it raises `Misfit`."""

_MOST_SHOWN: Final = 60
_LONG: Final = 1 << 63
_PLAIN_NAME: Final = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_DATE: Final = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_DATE_TIME: Final = re.compile(
    r"\d{4}-\d\d-\d\d[Tt ](?:[01]\d|2[0-3]):[0-5]\d:\d\d(?:\.\d+)?(?:[Zz]|[+-](?:[01]\d|2[0-3]):[0-5]\d)", re.ASCII
)


class Misfit(ValueError):
    """A value does not fit its column's type. The text has the value's JSON path."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.steps: list[str | int] = []
        """The path to the value, from the inside out."""

    def __str__(self) -> str:
        return f"{''.join(['$', *map(_shown_step, reversed(self.steps))])}: {self.reason}"


def row_converter(table: StructType, wanted: StructType) -> Convert:
    """A converter from JSON objects to tuples for ``table``; absent members and null are None.

    :param wanted: the schema's columns. Other columns of the table stay None.
    """
    return _object(table, wanted, property_name)


def member_converters(table: StructType, wanted: StructType) -> list[tuple[str, Convert]]:
    """The property of each column of ``table``, and the converter of its values, as `row_converter` has them."""
    return _members(table, wanted, property_name)


def _members(table: StructType, wanted: StructType, property_of: Callable[[str], str]) -> list[tuple[str, Convert]]:
    known = {fold(field.name): field for field in wanted.fields}
    members = []
    for field in table.fields:
        now = known.get(fold(field.name))
        convert = _nothing if now is None else _member(field, now.dataType)
        members.append((property_of(field.name if now is None else now.name), convert))
    return members


def _object(table: StructType, wanted: StructType, property_of: Callable[[str], str] = str) -> Convert:
    members = _members(table, wanted, property_of)

    def to_tuple(value: Any) -> tuple[Any, ...]:
        if type(value) is not dict:
            raise _misfit(value, "an object")
        row = []
        name = ""
        try:
            for name, convert in members:
                member = value.get(name)
                row.append(None if member is None else convert(member))
        except Misfit as misfit:
            misfit.steps.append(name)
            raise
        return tuple(row)

    return to_tuple


def _member(field: StructField, wanted: DataType) -> Convert:
    return _json_text if is_json_text(field) else _converter(field.dataType, wanted)


def _converter(kind: DataType, wanted: DataType) -> Convert:
    if isinstance(kind, StructType):
        # The table still knows the members of a schema that has become open.
        return _object(kind, wanted if isinstance(wanted, StructType) else kind)
    if isinstance(kind, ArrayType):
        inner = wanted if isinstance(wanted, ArrayType) else kind
        return _array(_converter(kind.elementType, inner.elementType))
    if isinstance(kind, DecimalType):
        return _decimal(kind)
    return _SCALARS.get(type(kind)) or _no_converter(kind)


def _array(convert: Convert) -> Convert:
    def to_list(value: Any) -> list[Any]:
        if type(value) is not list:
            raise _misfit(value, "an array")
        items: list[Any] = []
        try:
            for item in value:
                items.append(None if item is None else convert(item))  # noqa: PERF401 - its length is the failure's index
        except Misfit as misfit:
            misfit.steps.append(len(items))
            raise
        return items

    return to_list


def _no_converter(kind: DataType) -> Convert:
    def refuse(value: Any) -> Any:
        raise _misfit(value, f"a value for the table's column, which has become {kind.simpleString()}")

    return refuse


def _nothing(_: Any) -> None:
    return None


def _long(value: Any) -> int:
    number = value
    if isinstance(value, float) and value.is_integer() and abs(value) <= _LONG:
        # To JSON Schema, 1.0 is an integer.
        exact = value.exact if isinstance(value, Written) else value
        number = int(exact) if exact == int(exact) else value
    if type(number) is not int or not -_LONG <= number < _LONG:
        raise _misfit(value, "an integer of 64 bits")
    return number


def _double(value: Any) -> float:
    if type(value) is int:
        try:
            number = float(value)
        except OverflowError:
            raise _misfit(value, "a number that a double holds") from None
        if int(number) != value:
            raise _misfit(value, _ROUNDED)
        return number
    if not isinstance(value, float) or math.isinf(value):
        raise _misfit(value, "a number that a double holds")
    if type(value) is Written and not value.is_double:
        raise _misfit(value, _ROUNDED)
    return float(value)


def _decimal(kind: DecimalType) -> Convert:
    unit = Decimal(1).scaleb(-kind.scale)
    # It raises if digits would be lost, or if there are too many.
    context = Context(prec=kind.precision, traps=[Inexact, InvalidOperation])

    def to_decimal(value: Any) -> Decimal:
        if type(value) not in _NUMBERS or (isinstance(value, float) and math.isinf(value)):
            raise _misfit(value, f"a number of {kind.simpleString()}")
        exact = value.exact if type(value) is Written else Decimal(repr(value) if type(value) is float else value)
        try:
            return exact.quantize(unit, context=context)
        except (Inexact, InvalidOperation):
            raise _misfit(value, f"a number of {kind.simpleString()}") from None

    return to_decimal


def _boolean(value: Any) -> bool:
    if type(value) is not bool:
        raise _misfit(value, "a boolean")
    return value


def _string(value: Any) -> str:
    if type(value) is Decimal:
        # A column of Avro's decimals that korvet up to 0.7 made.
        return str(value)
    if type(value) is not str:
        raise _misfit(value, "a string")
    return value if value.isascii() else _encodable(value)


def _json_text(value: Any) -> str:
    try:
        return _encodable(json_text(value))
    except Misfit:
        raise
    except ValueError:
        raise Misfit("it holds a number beyond those of a double") from None
    except RecursionError:
        raise Misfit("it is nested too deeply") from None


def _encodable(text: str) -> str:
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise Misfit("a text holds half of a surrogate pair") from None
    return text


def to_timestamp(value: Any) -> datetime:
    """A time of RFC 3339 in UTC, cut to microseconds."""
    if type(value) is str and _DATE_TIME.fullmatch(value):
        try:
            found = datetime.fromisoformat(value.upper())
            return found if found.tzinfo is UTC else found.astimezone(UTC)
        except (ValueError, OverflowError):
            # This is the 30th of February, a leap second, or a year beyond 1 to 9999.
            pass
    raise _misfit(value, "a date-time that a timestamp holds")


def _date(value: Any) -> date:
    if type(value) is str and _DATE.fullmatch(value):
        try:
            return date.fromisoformat(value)
        except ValueError:
            pass
    raise _misfit(value, "a date")


_NUMBERS: Final = (int, float, Written, Decimal)
_ROUNDED: Final = "a number that a double holds without rounding; multipleOf in the schema makes a column of decimals"
_SCALARS: Final[dict[type[DataType], Convert]] = {
    BooleanType: _boolean,
    DateType: _date,
    DoubleType: _double,
    LongType: _long,
    StringType: _string,
    TimestampType: to_timestamp,
}
LONG: Final[Convert] = _long
AS_IT_IS: Final[Mapping[Convert, type]] = {_boolean: bool, _double: float, _long: int, _string: str}
"""Converters that return each value of their type as it is, if it is finite and Arrow's type can hold it."""


def _misfit(value: Any, what: str) -> Misfit:
    try:
        shown = value.text if type(value) is Written else json.dumps(value, default=str)
    except RecursionError:
        shown = "a value that is nested too deeply"
    if len(shown) > _MOST_SHOWN:
        shown = f"{shown[: _MOST_SHOWN - 1]}…"
    return Misfit(f"{shown} is not {what}")


def _shown_step(step: str | int) -> str:
    if isinstance(step, str) and _PLAIN_NAME.fullmatch(step):
        return f".{step}"
    return f"[{step!r}]"
