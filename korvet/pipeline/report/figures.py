"""A report: its configuration, its figures, and these in units that people read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import date, datetime, timedelta
from typing import Any, Final

from korvet.pipeline.plan.losses import Loss
from korvet.unknown import known

_PREFIXES: Final = ("", "k", "M", "G", "T", "P")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportConfig:
    """The scope of a report. Times are in UTC; ``since`` is included, ``until`` is not.

    :param bootstrap_servers: the brokers for the lags of groups; None leaves lags out.
    :param lake: the archive for throughput and size.
    :param topics: none means all.
    :param groups: none means all.
    :param interval_s: length of the throughput's intervals; None chooses a length that makes at most 150.
    :param client: a Kafka client's settings by their Java names.
    """

    lake: str
    bootstrap_servers: str | None = None
    topics: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    since: datetime
    until: datetime
    interval_s: float | None = None
    client: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lag:
    """A group's lag in a partition: ``end`` is the high watermark."""

    group: str
    topic: str
    partition: int
    committed: int
    end: int

    @property
    def lag(self) -> int:
        return max(0, self.end - self.committed)


@dataclass(frozen=True, slots=True, kw_only=True)
class UnreadableGroup:
    """A group that the lags leave out, and the reason as a sentence."""

    group: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Unarchived:
    """A topic with an apparently stopped archive, while the broker keeps its records: ``offsets`` wait for it."""

    topic: str
    offsets: int

    def __str__(self) -> str:
        return (
            f"topic {self.topic}: its archive seems to have stopped: {self.offsets:,} offsets older than ten minutes "
            "are not archived, and the broker keeps them (korvet.retention=archived); start 'korvet pipeline archive'"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A topic's records with timestamps in an interval; bytes of keys, values and headers, uncompressed."""

    topic: str
    start: datetime
    records: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Day:
    """A day of a topic's archive: the records that it wrote, and the files of all its tables with their bytes on disk.

    ``records`` is None if a file's entry in Delta's log lacks the number.
    """

    topic: str
    date: date
    records: int | None
    bytes: int
    files: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicLoss:
    """Offsets that a topic's archive went on without, by the proof of its raw table."""

    topic: str
    loss: Loss

    def __str__(self) -> str:
        return f"topic {self.topic}, {self.loss}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Figures: lags at the moment ``made_at``, all days of the lake, and the intervals that have records."""

    made_at: datetime
    since: datetime
    until: datetime
    interval_s: float
    lags: tuple[Lag, ...]
    intervals: tuple[Interval, ...]
    days: tuple[Day, ...]
    unreadable: tuple[UnreadableGroup, ...] = ()
    losses: tuple[TopicLoss, ...] = ()
    unarchived: tuple[Unarchived, ...] = ()

    @property
    def topics(self) -> list[str]:
        """The archived topics; the one with most records in the report's time is first."""
        records = {day.topic: 0 for day in self.days}
        for interval in self.intervals:
            records[interval.topic] = records.get(interval.topic, 0) + interval.records
        return sorted(records, key=lambda topic: (-records[topic], topic))

    def covered_s(self, start: datetime) -> float:
        """Seconds of the interval that begins at ``start`` in the report's time."""
        end = min(start + timedelta(seconds=self.interval_s), self.until)
        return (end - max(start, self.since)).total_seconds()

    def to_json(self) -> dict[str, Any]:
        """The report as JSON values; times are texts."""
        fields = asdict(self)
        for lag, facts in zip(self.lags, fields["lags"], strict=True):
            facts["lag"] = lag.lag
        made: dict[str, Any] = _with_texts(fields)
        return made


def _with_texts(value: Any) -> Any:
    match value:
        case dict():
            return {name: _with_texts(item) for name, item in value.items()}
        case list() | tuple():
            return [_with_texts(item) for item in value]
        case date():
            return value.isoformat()
    return value


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
