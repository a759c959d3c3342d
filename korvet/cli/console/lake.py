"""The lake by its last report: the file that ``korvet pipeline report --json`` wrote.

A report needs Spark and takes as long as the lake is large. So the console starts none, and shows a timer's last one.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

from korvet.errors import KorvetError
from korvet.unknown import total

_MOST_BYTES: Final = 32 << 20
OLD_S: Final = 2 * 86_400
"""From this age of a report on, the page asks for its timer."""


class TopicRow(NamedTuple):
    """An archived topic: its records in the report's time, and its records, bytes on disk and files in the lake."""

    topic: str
    recent_records: int
    records: int | None
    size_bytes: int
    files: int
    last_day: str


class LagRow(NamedTuple):
    """A group's lag at the time of the report."""

    group: str
    topic: str
    partition: int
    lag: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeReport:
    """A report's figures for the page, and its age. ``alarms`` are sentences."""

    made_at: str
    age_s: float
    since: str
    until: str
    topics: Sequence[TopicRow]
    lags: Sequence[LagRow]
    alarms: Sequence[str]

    @property
    def is_old(self) -> bool:
        return self.age_s >= OLD_S


def read_report(path: Path) -> LakeReport:
    """Read the report in a file.

    :raises KorvetError: if the file has none.
    """
    try:
        with path.open("rb") as file:
            content = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise KorvetError(f"cannot read the lake's report {path}: {(error.strerror or str(error)).lower()}") from None
    if len(content) > _MOST_BYTES:
        raise KorvetError(f"the lake's report {path} is larger than {_MOST_BYTES} bytes; make it with fewer topics")
    try:
        return _report(json.loads(content))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise KorvetError(f"{path} is no report; make one: korvet pipeline report --lake LAKE --json > FILE") from None


def _report(fields: Mapping[str, Any]) -> LakeReport:
    recent: dict[str, int] = {}
    for interval in fields["intervals"]:
        recent[interval["topic"]] = recent.get(interval["topic"], 0) + int(interval["records"])
    rows: dict[str, TopicRow] = {}
    for day in fields["days"]:
        topic = str(day["topic"])
        row = rows.get(topic) or TopicRow(topic, recent.get(topic, 0), 0, 0, 0, "")
        rows[topic] = row._replace(
            records=total((row.records, None if day["records"] is None else int(day["records"]))),
            size_bytes=row.size_bytes + int(day["bytes"]),
            files=row.files + int(day["files"]),
            last_day=max(row.last_day, str(day["date"])),
        )
    lags = [
        LagRow(str(lag["group"]), str(lag["topic"]), int(lag["partition"]), int(lag["lag"])) for lag in fields["lags"]
    ]
    return LakeReport(
        made_at=str(fields["made_at"]),
        age_s=max(0.0, time.time() - _seconds(str(fields["made_at"]))),
        since=str(fields["since"]),
        until=str(fields["until"]),
        topics=[rows[topic] for topic in sorted(rows)],
        lags=sorted(lags, key=lambda lag: -lag.lag),
        alarms=_alarms(fields),
    )


def _seconds(made_at: str) -> float:
    made = datetime.fromisoformat(made_at)
    return (made if made.tzinfo else made.replace(tzinfo=UTC)).timestamp()


def shown_age(age_s: float) -> str:
    """An age in its largest unit."""
    for unit, unit_s in (("day", 86_400), ("hour", 3600)):
        if age_s >= unit_s:
            count = int(age_s // unit_s)
            return f"{count} {unit}{'s' if count > 1 else ''}"
    minutes = int(age_s // 60)
    return f"{minutes} minute{'s' if minutes != 1 else ''}"


def _alarms(fields: Mapping[str, Any]) -> list[str]:
    return [
        *(
            f"Topic {one['topic']}: its archive seems to have stopped; {int(one['offsets']):,} offsets wait for it."
            for one in fields["unarchived"]
        ),
        *(f"Topic {one['topic']}: its archive went on without some offsets." for one in fields["losses"]),
        *(f"The lags leave out a group: {one['reason']}" for one in fields["unreadable"]),
    ]
