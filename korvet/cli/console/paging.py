"""Pages of long lists, and links to them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Generic, NamedTuple, TypeVar
from urllib.parse import urlencode

T = TypeVar("T")
ROWS: Final = 100


class Page(NamedTuple, Generic[T]):
    """A part of a list: its rows, its number from 1, the number of pages, and of all rows."""

    rows: Sequence[T]
    number: int
    pages: int
    total: int


def page_of(rows: Sequence[T], number: int) -> Page[T]:
    """The page with this number, or the nearest one."""
    pages = max(1, -(-len(rows) // ROWS))
    number = min(max(number, 1), pages)
    return Page(rows[(number - 1) * ROWS : number * ROWS], number, pages, len(rows))


def query(path: str, **fields: object) -> str:
    """A link within the console."""
    return f"{path}?{urlencode({name: value for name, value in fields.items() if value not in (None, '')})}"
