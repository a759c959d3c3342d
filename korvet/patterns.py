"""Regular expressions of clients and operators, by RE2, whose time to match grows with the text alone.

The time to compile one, and its memory, are bounded here. A thread would not help, because RE2 compiles with Python's
lock.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final

import re2

MOST_CHARACTERS: Final = 10_000
"""The longest expression."""
MOST_COMPILED_BYTES: Final = 512 << 10
"""The memory of a compiled expression."""
_MOST_KEPT: Final = 256
"""Some compiled expressions take a good part of a megabyte. Most take some microseconds to compile again."""
MOST_COST: Final = 1000
"""The repetitions of an expression, and `_UNICODE_CLASS` for each Unicode class."""
_UNICODE_CLASS: Final = 20
"""The cost of a Unicode class, where a repetition costs one. RE2 takes up to 0.1 ms for a class, and for repetitions in
a row the square of their number."""
_TOO_LARGE: Final = "pattern too large - compile failed"
_NAMED_GROUP: Final = re.compile(
    r"\\Q(?s:.*?)(?:\\E|\Z)|\\(?s:.)|\[\^?\]?(?s:\[:\^?\w+:\]|\\.|[^\]\\])*\]|(?P<group>\(\?P?<\w+>)"
)
"""The beginning of a named group; or a quotation, an escape or a class, which may hold the same characters."""


def compiled(text: str) -> Any:
    """An expression whose match against a text takes at most some 10 ms. It captures no groups.

    :raises ValueError: RE2 does not take it, or it is too large; the text has RE2's words.
    """
    return _known(text, captures=False)


def capturing(text: str) -> Any:
    """An expression whose groups a replacement may name.

    :raises ValueError: as `compiled`.
    """
    return _known(text, captures=True)


def _known(text: str, *, captures: bool) -> Any:
    found = _compiled_or_why(text, captures)
    if isinstance(found, str):
        raise ValueError(found)
    return found


@lru_cache(maxsize=_MOST_KEPT)
def _compiled_or_why(text: str, captures: bool) -> Any:
    if len(text) > MOST_CHARACTERS or _cost(text) > MOST_COST:
        return _TOO_LARGE
    options = re2.Options()
    options.log_errors = False
    options.max_mem = MOST_COMPILED_BYTES
    options.never_capture = not captures  # with a thousand groups, a name would take 400 ms
    compile_: Callable[..., Any] = re2.compile
    try:
        pattern = compile_(text, options)
        # RE2 captures named groups all the same.
        is_plain = captures or not pattern.groups
        return pattern if is_plain else compile_(_NAMED_GROUP.sub(_unnamed, text), options)
    except (re2.error, UnicodeEncodeError) as error:
        why = error.args[0]
        return why.decode(errors="replace") if isinstance(why, bytes) else str(why)


def _cost(text: str) -> int:
    repetitions = sum(map(text.count, "{?*+")) - text.count("(?")
    return repetitions + _UNICODE_CLASS * (text.count("\\p") + text.count("\\P"))


def _unnamed(found: re.Match[str]) -> str:
    return "(?:" if found["group"] else found[0]
