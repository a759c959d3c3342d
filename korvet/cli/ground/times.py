"""The times and spans of time that flags take."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import click

_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_SECONDS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


class Duration(click.ParamType[float]):
    """A time span with its unit, as ``10s``; hands over seconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, int | float):
            return float(value)
        found = _DURATION.fullmatch(value)
        if found is None:
            self.fail(f"{value!r} is no duration; want a number with ms, s, m, h or d, for example 10s", param, ctx)
        return float(found[1]) * _SECONDS[found[2]]


class Time(click.ParamType[datetime]):
    """A time by ISO 8601 (without a zone: UTC), or a duration before now; hands over a time in UTC."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        if isinstance(value, datetime):
            return value
        ago = _DURATION.fullmatch(value)
        try:
            if ago is not None:
                return datetime.now(UTC) - timedelta(seconds=float(ago[1]) * _SECONDS[ago[2]])
            time = datetime.fromisoformat(value)
            return time.astimezone(UTC) if time.tzinfo is not None else time.replace(tzinfo=UTC)
        except (ValueError, OverflowError):
            self.fail(
                f"{value!r} is no time; want one such as 2026-01-31T12:00:00+01:00, or 24h for 24 hours ago", param
            )


def milliseconds(time: datetime) -> int:
    """Milliseconds since 1970."""
    return int(time.timestamp() * 1000)
