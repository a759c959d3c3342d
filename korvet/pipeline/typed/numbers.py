"""Numbers of JSON texts that a double does not hold exactly: the text stays beside the double."""

from __future__ import annotations

import json
import sys
from decimal import MIN_EMIN, Decimal, InvalidOperation
from typing import Any, Final

import re2

DOUBLE_DIGITS: Final = 17
"""Digits that determine any double. Further digits say more than a double has, unless they are its exact value."""


def _longer_than(digits: int) -> str:
    """A pattern of fractions, and of integers with an exponent, of more digits. RE2 knows no look-ahead.

    It also matches numbers that may be so small that a double has fewer digits for them, or none.
    """
    points = (rf"\d{{{before}}}\.\d{{{digits + 1 - before}}}" for before in range(1, digits + 1))
    return "|".join((*points, rf"\d{{{digits + 1}}}[eE.]", r"[:\[,\s]-?\d[\d.]*[eE]-\d{3}"))


EXACT: Final = _longer_than(15)
"""A text without it has no fraction that a double rounds."""
OF_DOUBLE: Final = _longer_than(DOUBLE_DIGITS)
"""A text without it has no fraction with more digits than determine a double."""
_EXACT: Final = re2.compile(EXACT.encode())


_LEAST: Final = Decimal((0, (1,), MIN_EMIN))


class Written(float):
    """A number with a fraction or an exponent, and its text."""

    __slots__ = ("text",)
    text: str

    @property
    def exact(self) -> Decimal:
        """The exact number of the text; for a number too small for a decimal, but not 0, the least decimal."""
        try:
            return Decimal(self.text)
        except InvalidOperation:
            # The double is finite, so the exponent is below those of decimals.
            return _LEAST if any(digit in self.text.lower().partition("e")[0] for digit in "123456789") else Decimal()

    @property
    def is_double(self) -> bool:
        """True if the double is the text's number, as far as a double's text goes."""
        exact = self.exact
        digits = "".join(map(str, exact.as_tuple().digits)).strip("0")
        if len(digits) <= DOUBLE_DIGITS and abs(self) >= sys.float_info.min:
            return True
        return exact == Decimal(float(self)) or exact == Decimal(repr(float(self)))


def may_round(value: bytes) -> bool:
    """True if a JSON text may have a fraction that is not its double; also for some texts without one."""
    return _EXACT.search(value) is not None


def with_texts(value: bytes) -> Any:
    """A value of JSON that was read before, with `Written` for each fraction and exponent."""
    return json.loads(value, parse_float=_written)


def _written(text: str) -> Written:
    number = Written(text)
    number.text = text
    return number


def json_text(value: Any) -> str:
    """The JSON text of a value, with the numbers as they were written.

    :raises ValueError: if it has a number beyond the range of a double.
    """
    if type(value) is Written:
        return value.text
    if type(value) is dict:
        members = (f"{json.dumps(name, ensure_ascii=False)}:{json_text(each)}" for name, each in value.items())
        return f"{{{','.join(members)}}}"
    if type(value) is list:
        return f"[{','.join(map(json_text, value))}]"
    # A decimal is of Avro, and stays a text there.
    return json.dumps(value, ensure_ascii=False, allow_nan=False, default=str)
