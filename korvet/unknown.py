"""Numbers that are not known. They are shown as a dash, and never as zero; a sum with one of them is not known either.

In JSON they are null.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, TypeVar

T = TypeVar("T")
UNKNOWN: Final = "-"


def known(value: T | None, form: Callable[[T], str] = str) -> str:
    """A value in a form for people, or `UNKNOWN`."""
    return UNKNOWN if value is None else form(value)


def total_known(numbers: Iterable[int | None]) -> int | None:
    """The sum of the numbers that are known, or None if none is."""
    found = [number for number in numbers if number is not None]
    return sum(found) if found else None


def total(numbers: Iterable[int | None]) -> int | None:
    """The sum, or None if a number is not known."""
    added = 0
    for number in numbers:
        if number is None:
            return None
        added += number
    return added
