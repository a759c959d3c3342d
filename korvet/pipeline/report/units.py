"""Numbers in units that people read."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from korvet.unknown import known

_PREFIXES: Final = ("", "k", "M", "G", "T", "P")


def bytes_text(size: float | None) -> str:
    """Bytes as ``12.3 MB``; a MB has 1000 kB."""
    return known(size, lambda size: _text(size, 1000) + "B")


def count_text(count: float | None) -> str:
    """A count as ``1.2 M``; up to 9999 in full."""
    return known(count, lambda count: _text(count, 10_000).strip())


def _text(number: float, from_: int) -> str:
    """The number with a prefix from ``from_`` on, and at most three digits."""
    at = 0
    if abs(number) >= from_:
        while abs(number) >= 1000 and at < len(_PREFIXES) - 1:
            number, at = number / 1000, at + 1
    shown = f"{number:,.0f}" if abs(number) >= 100 else f"{number:.3g}"
    return f"{shown} {_PREFIXES[at]}"


def span_text(seconds: float) -> str:
    """A time as ``10 s``, ``5 min``, ``1 h`` or ``1 day, 0:00:00``."""
    if seconds < 60:
        return f"{seconds:g} s"
    if seconds < 3600:
        return f"{seconds / 60:g} min"
    return f"{seconds / 3600:g} h" if seconds < 86400 else str(timedelta(seconds=seconds))
