"""A report's plots as SVG. Colour-blind people can tell its colours apart (Okabe and Ito)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from html import escape
from io import StringIO
from typing import Any, Final

import matplotlib
from matplotlib import dates
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from korvet.pipeline.report.figures import Report, bytes_text, count_text

_COLOURS: Final = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00")
_STYLES: Final[tuple[Any, ...]] = ("solid", (0, (5, 1.5)), (0, (1, 1)), (0, (5, 1, 1, 1)), (0, (3, 1)), (0, (8, 2)))
_REST: Final = "#999999"
_INK: Final = "#333333"
_MAX_TOPICS: Final = len(_COLOURS)
_MAX_GROUPS: Final = 15
_OTHERS: Final = "all others"
_WIDTH: Final = 9.6
_SETTINGS: Final[dict[Any, Any]] = {
    # Text stays text: a reader can search it, a program reads it aloud, and it has the page's font.
    "svg.fonttype": "none",
    "svg.hashsalt": "korvet",
    "font.size": 10,
    "text.color": _INK,
    "axes.labelcolor": _INK,
    "axes.edgecolor": "#bbbbbb",
    "xtick.color": _INK,
    "ytick.color": _INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "grid.color": "#e6e6e6",
    "axes.axisbelow": True,
    "legend.frameon": False,
}


def throughput(report: Report) -> str:
    """Records and bytes a second over time, a line for each topic."""
    with matplotlib.rc_context(_SETTINGS):
        figure = Figure(figsize=(_WIDTH, 4.6), layout="constrained")
        above, below = figure.subplots(2, 1, sharex=True)
        starts = _starts(report)
        shown: dict[str, Any] = {}
        for name, topics, colour, style in _series(report):
            records, sizes = _rates(report, topics, starts)
            look: dict[str, Any] = {"color": colour, "linestyle": style, "linewidth": 1.8, "drawstyle": "steps-post"}
            (shown[name],) = above.plot(starts, records, **look)
            below.plot(starts, sizes, **look)
        _time_axis(below)
        above.set_ylabel("records/s")
        below.set_ylabel("bytes/s")
        _from_zero(above, count_text)
        _from_zero(below, bytes_text)
        _legend(figure, shown)
        return _svg(figure, "Lines of records per second and bytes per second over time, one for each topic.")


def sizes(report: Report) -> str:
    """Bytes in the lake by the records' day, with topics stacked."""
    with matplotlib.rc_context(_SETTINGS):
        figure = Figure(figsize=(_WIDTH, 3.0), layout="constrained")
        axes = figure.subplots()
        found = sorted({day.date for day in report.days})
        base = [0.0] * len(found)
        shown: dict[str, Any] = {}
        for name, topics, colour, _ in _series(report):
            of_topics = [day for day in report.days if day.topic in topics]
            heights = [float(sum(day.bytes for day in of_topics if day.date == date)) for date in found]
            shown[name] = axes.bar(_texts(found), heights, 0.7, base, color=colour)
            base = [low + height for low, height in zip(base, heights, strict=True)]
        axes.margins(x=0.02 if len(found) > 6 else 1 / (len(found) + 1))
        if len(found) > 8:
            axes.set_xticks(range(0, len(found), -(-len(found) // 8)))
        axes.set_ylabel("on disk")
        _from_zero(axes, bytes_text)
        _legend(figure, shown)
        return _svg(figure, "Bars of the bytes that the lake keeps of each day, topics one upon the other.")


def lag_bars(report: Report) -> str:
    """Bars of each group's lag, summed over its partitions; the worst first."""
    totals: dict[str, int] = {}
    for lag in report.lags:
        totals[lag.group] = totals.get(lag.group, 0) + lag.lag
    worst = sorted(totals, key=lambda group: (-totals[group], group))[:_MAX_GROUPS]
    with matplotlib.rc_context({**_SETTINGS, "axes.grid.axis": "x"}):
        figure = Figure(figsize=(_WIDTH, 0.7 + 0.32 * len(worst)), layout="constrained")
        axes = figure.subplots()
        rows = range(len(worst))
        bars = axes.barh(rows, [totals[group] for group in worst], 0.6, color=_COLOURS[0])
        axes.bar_label(bars, [count_text(totals[group]) for group in worst], padding=4)
        axes.set_yticks(rows, [_short(group) for group in worst], parse_math=False)
        axes.set_xlim(0, max(1, *totals.values()) * 1.12)
        axes.invert_yaxis()
        axes.set_xlabel("records behind")
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: count_text(value)))
        return _svg(figure, "Bars of the records that each group is behind, the furthest first.")


def _series(report: Report) -> list[tuple[str, set[str], str, Any]]:
    """Name, topics, colour and style of each line: the busiest topics, and the sum of the others."""
    topics = report.topics
    shown = topics if len(topics) <= _MAX_TOPICS else topics[: _MAX_TOPICS - 1]
    series: list[tuple[str, set[str], str, Any]] = [
        (topic, {topic}, colour, style) for topic, colour, style in zip(shown, _COLOURS, _STYLES, strict=False)
    ]
    if len(shown) < len(topics):
        series.append((_OTHERS, set(topics[len(shown) :]), _REST, "solid"))
    return series


def _starts(report: Report) -> list[datetime]:
    """The starts of all intervals in the report's time, also of intervals without records."""
    length = timedelta(seconds=report.interval_s)
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    first = (report.since - epoch) // length
    end = -((epoch - report.until) // length)
    return [epoch + number * length for number in range(first, end)]


def _rates(report: Report, topics: set[str], starts: Sequence[datetime]) -> tuple[list[float], list[float]]:
    counts, sizes = dict.fromkeys(starts, 0.0), dict.fromkeys(starts, 0.0)
    for interval in report.intervals:
        if interval.topic in topics:
            seconds = report.covered_s(interval.start)
            counts[interval.start] += interval.records / seconds
            sizes[interval.start] += interval.bytes / seconds
    return list(counts.values()), list(sizes.values())


def _time_axis(axes: Axes) -> None:
    # matplotlib's dates have no types.
    locator: Any = dates.AutoDateLocator(minticks=4, maxticks=9, tz=UTC)  # type: ignore[no-untyped-call]
    axes.xaxis.set_major_locator(locator)
    formatter: Any = dates.ConciseDateFormatter(locator, tz=UTC)  # type: ignore[no-untyped-call]
    axes.xaxis.set_major_formatter(formatter)
    axes.margins(x=0.01)


def _from_zero(axes: Axes, text: Any) -> None:
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: text(value)))


def _legend(figure: Figure, shown: Mapping[str, Any]) -> None:
    # The axes' own legend would leave out names that begin with an underscore.
    figure.legend([*shown.values()], [_short(name) for name in shown], loc="outside upper left", ncols=3)


def _texts(values: Sequence[object]) -> list[str]:
    return [str(value) for value in values]


def _short(name: str) -> str:
    return name if len(name) <= 40 else f"{name[:37]}…"


def _svg(figure: Figure, description: str) -> str:
    """The figure as an element of a page, with a description in words."""
    written = StringIO()
    figure.savefig(written, format="svg", metadata={"Date": None})
    text = written.getvalue()
    element = text[text.index("<svg") :]
    # A size in points would keep the figure from shrinking with the page.
    element = re.sub(r' (?:width|height)="[\d.]+pt"', "", element, count=2)
    return element.replace("<svg", f'<svg role="img" aria-label="{escape(description)}"', 1)
