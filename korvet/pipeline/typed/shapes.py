"""Rows of many values at once: values of one shape, column by column.

JSON objects have one shape if their names are the same, and so are their members' types in turn. So a shape's columns
have one type each, and Arrow takes most of them as they are. That is four times as fast as one value after the other.
It is never wrong, but it leaves out values that are not sure to fit: the judge decides on those.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import compress
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from korvet.configs.json_values import MOST_LEVELS, UNREADABLE, decode_quickly, quotation_marks
from korvet.configs.schema_keywords import PATIENCE
from korvet.configs.schema_shortcut import MemberShortcut
from korvet.pipeline.typed.convert import AS_IT_IS, LONG, Convert, Misfit, to_timestamp
from korvet.pipeline.typed.numbers import EXACT, OF_DOUBLE

Rows = tuple[list[int], pa.StructArray]
"""The indexes of values, and their rows."""

_FEWEST: Final = 16
"""Values of a shape: fewer are not worth it."""
_NESTED: Final = frozenset({dict, list})
_FRACTIONS: Final = _NESTED | {float}
_UTC_TIME: Final = r"^\d{4}-\d\d-\d\dT([01]\d|2[0-3]):[0-5]\d:[0-5]\d(\.\d{1,6})?Z$"
_FIRST_US: Final = -62_135_596_800_000_000
"""The begin of the year 1 in microseconds of Unix time; Python's times begin there, and Arrow's before."""


class Shapes:
    """Makes rows of most values that fit.

    :param members: for each column, the property and the converter of its values.
    :param row: the type of a row.
    :param is_exact: some columns need each digit of a number.
    """

    def __init__(
        self, shortcut: MemberShortcut, members: Sequence[tuple[str, Convert]], row: pa.StructType, *, is_exact: bool
    ) -> None:
        self._shortcut, self._members, self._row, self._is_exact = shortcut, members, row, is_exact

    def rows(self, values: Sequence[bytes | None]) -> list[Rows]:
        """The rows of values that surely fit; each value is in one of the lists at most."""
        longest = PATIENCE.most_at_a_glance // self._shortcut.keywords
        found: list[Any] = [None] * len(values)
        shapes: defaultdict[tuple[Any, ...], list[int]] = defaultdict(list)
        for at, value in enumerate(values):
            # The number of quotation marks shows names that occur twice, and not every mark is one with escapes.
            if value is None or b"\\" in value or len(value) > longest:
                continue
            try:
                members = decode_quickly(value)
            except UNREADABLE:
                continue
            if type(members) is dict:
                found[at] = members
                shapes[*members, *map(type, members.values())].append(at)
        made = (
            self._of_shape(shape, indexes, values, found)
            for shape, indexes in shapes.items()
            if len(indexes) >= _FEWEST
        )
        return [rows for rows in made if rows is not None]

    def _of_shape(
        self, shape: Sequence[Any], indexes: list[int], values: Sequence[Any], found: Sequence[Any]
    ) -> Rows | None:
        names, kinds = shape[: len(shape) // 2], shape[len(shape) // 2 :]
        checks = self._shortcut.checks(names, kinds)
        if checks is None:
            return None
        columns: list[Sequence[Any]] = list(zip(*(found[at].values() for at in indexes), strict=True))
        surely = _names_occur_once([values[at] for at in indexes], columns, kinds)
        if not _FRACTIONS.isdisjoint(kinds):
            surely = [a and not b for a, b in zip(surely, self._may_round(indexes, values), strict=True)]
        for index, check in checks:
            surely = [is_sure and _passes(check, value) for is_sure, value in zip(surely, columns[index], strict=True)]
        if not all(surely):
            indexes, columns = _those(indexes, surely), [_those(column, surely) for column in columns]
        by_name = {name: (kind, column) for name, kind, column in zip(names, kinds, columns, strict=True)}
        try:
            arrays = [
                _array(*by_name.get(name, (type(None), ())), convert, field.type, len(indexes))
                for (name, convert), field in zip(self._members, self._row, strict=True)
            ]
        except (Misfit, pa.ArrowException, OverflowError, UnicodeEncodeError):
            return None
        if not arrays:
            return indexes, pa.array([()] * len(indexes), self._row)
        return indexes, pa.StructArray.from_arrays(arrays, fields=list(self._row))

    def _may_round(self, indexes: Sequence[int], values: Sequence[Any]) -> list[bool]:
        """For each text, True if it may have a number that is not its double."""
        texts = pa.array([values[at] for at in indexes], pa.binary())
        found: list[bool] = pc.match_substring_regex(texts, EXACT if self._is_exact else OF_DOUBLE).to_pylist()
        return found


def _names_occur_once(values: Sequence[bytes], columns: Sequence[Sequence[Any]], kinds: Sequence[type]) -> list[bool]:
    """For each value, True if it has as many quotation marks as its members need."""
    marks = 2 * len(kinds) + 2 * kinds.count(str)
    nested = [column for column, kind in zip(columns, kinds, strict=True) if kind in _NESTED]
    if not nested:
        return [value.count(b'"') == marks for value in values]
    return [_has_marks(value, marks, members) for value, *members in zip(values, *nested, strict=True)]


def _has_marks(value: bytes, marks: int, nested: Sequence[Any]) -> bool:
    try:
        return value.count(b'"') == marks + sum(quotation_marks(each, MOST_LEVELS - 1) for each in nested)
    except RecursionError:
        return False


def _passes(check: Callable[[Any], bool], value: Any) -> bool:
    try:
        return check(value)
    except (RecursionError, UnicodeEncodeError):
        return False


def _those(items: Sequence[Any], wanted: Sequence[bool]) -> list[Any]:
    return list(compress(items, wanted))


def _array(kind: type, column: Sequence[Any], convert: Convert, wanted: pa.DataType, length: int) -> pa.Array:
    """A column of values of one type.

    :raises Misfit, pa.ArrowException, OverflowError, UnicodeEncodeError: if one does not fit.
    """
    if kind is type(None):
        return pa.nulls(length, wanted)
    if kind is float and convert is LONG:
        raise Misfit("a fraction, which may have been rounded to an integer")
    if AS_IT_IS.get(convert) is kind:
        made = pa.array(column, wanted)
        if kind is float and not pc.all(pc.is_finite(made), min_count=0).as_py():
            raise Misfit("a number that no double holds")
        return made
    if convert is to_timestamp and kind is str and (times := _times(column, wanted)) is not None:
        return times
    return pa.array([convert(value) for value in column], wanted)


def _times(column: Sequence[str], wanted: pa.DataType) -> pa.Array | None:
    """Times in the form that Arrow reads as the converter does; None if one has another form."""
    texts = pa.array(column, pa.string())
    if not pc.all(pc.match_substring_regex(texts, _UTC_TIME), min_count=0).as_py():
        return None
    try:
        times = texts.cast(wanted)
    except pa.ArrowInvalid:
        return None
    first = pc.min(times.cast(pa.int64()), min_count=0).as_py()
    return None if first is not None and first < _FIRST_US else times
