"""A report as one HTML page that needs nothing else: no script, no file beside it, no network."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Final

from korvet.pipeline.report.figures import Report, bytes_text, count_text, span_text
from korvet.pipeline.report.plots import lag_bars, sizes, throughput
from korvet.unknown import known, total

_MAX_LAGS: Final = 1000
_STYLE: Final = """
:root { color-scheme: light; }
body { margin: 0 auto; max-width: 62rem; padding: 1.5rem; font: 16px/1.5 system-ui, sans-serif; color: #222;
  background: #fff; }
h1 { margin: 0; font-size: 1.6rem; }
h2 { margin: 2.2rem 0 .6rem; font-size: 1.2rem; }
p { margin: .3rem 0; color: #555; }
dl { display: flex; flex-wrap: wrap; gap: .8rem; margin: 1.4rem 0 0; }
dl div { flex: 1 1 8rem; padding: .7rem 1rem; border: 1px solid #ddd; border-radius: .5rem; }
dt { font-size: .85rem; color: #555; }
dd { margin: 0; font-size: 1.3rem; font-weight: 600; }
svg { display: block; width: 100%; height: auto; }
svg text { font-family: system-ui, sans-serif !important; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .8rem .3rem 0; border-bottom: 1px solid #eee; text-align: left; overflow-wrap: anywhere; }
th { font-size: .85rem; color: #555; }
.n { text-align: right; white-space: nowrap; }
summary { margin-top: .8rem; cursor: pointer; }
"""


def html_page(report: Report) -> str:
    """The page's text."""
    parts = [*_alarms(report), *_throughput(report), *_size(report), *_losses(report), *_lag(report)]
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>korvet: topics and lake</title>
<style>{_STYLE}</style>
</head>
<body>
<h1>Topics and lake</h1>
<p>{_time(report.since)} to {_time(report.until)}, made at {_time(report.made_at)} (UTC)</p>
{_summary(report)}
{chr(10).join(parts) or "<p>There is nothing to report on.</p>"}
</body>
</html>
"""


def _summary(report: Report) -> str:
    facts: list[tuple[str, str]] = []
    if report.days:
        facts += [
            ("records in this time", count_text(sum(interval.records for interval in report.intervals))),
            ("their bytes", bytes_text(sum(interval.bytes for interval in report.intervals))),
            ("records in the lake", count_text(total(day.records for day in report.days))),
            ("lake on disk", bytes_text(sum(day.bytes for day in report.days))),
        ]
    if report.lags:
        facts.append(("records behind", count_text(sum(lag.lag for lag in report.lags))))
    shown = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in facts)
    return f"<dl>{shown}</dl>" if facts else ""


def _throughput(report: Report) -> list[str]:
    if not report.days:
        return []
    heading = f"<h2>Throughput</h2><p>By the records' timestamps, in intervals of {span_text(report.interval_s)}.</p>"
    if not report.intervals:
        return [f"{heading}<p>No record of the archive is of this time.</p>"]
    rows = []
    for topic in report.topics:
        of_topic = [interval for interval in report.intervals if interval.topic == topic]
        records = sum(interval.records for interval in of_topic)
        size = sum(interval.bytes for interval in of_topic)
        peak = max((interval.records / report.covered_s(interval.start) for interval in of_topic), default=0)
        rows.append((topic, count_text(records), bytes_text(size), count_text(peak)))
    return [heading, throughput(report), _table(("topic",), ("records", "bytes", "most records/s"), rows)]


def _size(report: Report) -> list[str]:
    if not report.days:
        return []
    rows = []
    for topic in report.topics:
        of_topic = [day for day in report.days if day.topic == topic]
        records, size, files = (total(getattr(day, name) for day in of_topic) for name in ("records", "bytes", "files"))
        first = known(min((str(day.date) for day in of_topic), default=None))
        rows.append((topic, first, count_text(records), bytes_text(size), count_text(files)))
    return [
        "<h2>Size</h2><p>What the lake keeps, by the day of archiving, as it lies on disk.</p>",
        sizes(report),
        _table(("topic",), ("since", "records", "on disk", "files"), rows),
    ]


def _losses(report: Report) -> list[str]:
    if not report.losses:
        return []
    paragraphs = "".join(f"<p>{escape(str(loss))}</p>" for loss in report.losses)
    return [f"<h2>Losses</h2><p>Offsets that archives went on without.</p>{paragraphs}"]


def _alarms(report: Report) -> list[str]:
    return [f"<p><strong>Alarm:</strong> {escape(str(topic))}.</p>" for topic in report.unarchived]


def _lag(report: Report) -> list[str]:
    if not (report.lags or report.unreadable):
        return []
    heading = "<h2>Lag</h2><p>How far consumer groups were behind when this was made.</p>"
    left_out = [
        f"<p>Group {escape(group.group)} is left out: {escape(group.reason)}.</p>" for group in report.unreadable
    ]
    return [heading, *left_out, *_lags_shown(report)]


def _lags_shown(report: Report) -> list[str]:
    if not report.lags:
        return []
    worst = sorted(report.lags, key=lambda lag: (-lag.lag, lag.group, lag.topic, lag.partition))[:_MAX_LAGS]
    rows = [
        (lag.group, lag.topic, str(lag.partition), f"{lag.committed:,}", f"{lag.end:,}", f"{lag.lag:,}")
        for lag in worst
    ]
    kept = f", the {_MAX_LAGS:,} furthest behind" if len(report.lags) > _MAX_LAGS else ""
    table = _table(("group", "topic"), ("partition", "committed", "end", "behind"), rows)
    return [lag_bars(report), f"<details><summary>By partition{kept}</summary>{table}</details>"]


def _table(texts: Sequence[str], numbers: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table with columns of text, then columns of numbers."""
    marks = [""] * len(texts) + [' class="n"'] * len(numbers)
    head = "".join(f'<th scope="col"{mark}>{name}</th>' for mark, name in zip(marks, (*texts, *numbers), strict=True))
    body = "".join(
        "<tr>" + "".join(f"<td{mark}>{escape(cell)}</td>" for mark, cell in zip(marks, row, strict=True)) + "</tr>"
        for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _time(time: object) -> str:
    return escape(f"{time:%Y-%m-%d %H:%M}")
