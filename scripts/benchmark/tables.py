"""The tables of a run's results."""

import statistics
from collections.abc import Mapping, Sequence

from rich.table import Table

from scripts.benchmark.growth import Growth
from scripts.benchmark.measures import Line, Measure
from scripts.benchmark.rounds import Spent, Values


def _shown(value: float, unit: str) -> str:
    if unit in ("ms", "s", "us"):
        return f"{value:.2f}"
    return f"{value:,.0f}"


def table(values: Values, chosen: Sequence[Measure], names: Sequence[str]) -> Table:
    """Medians of every line and how many times better the first broker is than each other."""
    shown = Table(title=f"medians; ratio: how many times better {names[0]} is", title_justify="left")
    for heading in ("measure", "generator", "unit"):
        shown.add_column(heading)
    for heading in (*names, *(f"/ {name}" for name in names[1:])):
        shown.add_column(heading, justify="right")
    for measure in chosen:
        for line in measure.lines:
            medians = {name: statistics.median(v) for name, v in values[measure.name, line.key].items()}
            cells = [_shown(medians[name], line.unit) if name in medians else "-" for name in names]
            ratios = [_ratio(medians, names[0], name, line) for name in names[1:]]
            shown.add_row(line.label, measure.generator, line.unit, *cells, *ratios)
    return shown


def _ratio(medians: Mapping[str, float], ours: str, other: str, line: Line) -> str:
    if ours not in medians or other not in medians:
        return "-"
    better, worse = (medians[other], medians[ours]) if line.less_is_better else (medians[ours], medians[other])
    return f"{better / worse:.2f}" if worse else "-"


def growth_table(growth: Growth) -> Table:
    """One kind of growth."""
    shown = Table(title=growth.title, title_justify="left")
    for heading in growth.headings:
        shown.add_column(heading, justify="right")
    for row in growth.rows:
        shown.add_row(*row)
    return shown


def processor_us(spent: Mapping[str, Mapping[str, Sequence[Spent]]]) -> dict[str, dict[str, dict[str, list[float]]]]:
    """Medians of the processor time for each record or request: measure -> broker -> role -> all and kernel's, in us.

    Only measures that count records or requests are there.
    """
    found: dict[str, dict[str, dict[str, list[float]]]] = {}
    for measure, brokers in spent.items():
        for broker, rounds in brokers.items():
            counted = [each for each in rounds if each.number]
            for role in counted[0].times if counted else ():
                totals = statistics.median(each.times[role].total_s / each.number for each in counted)
                kernels = statistics.median(each.times[role].kernel_s / each.number for each in counted)
                found.setdefault(measure, {}).setdefault(broker, {})[role] = [totals * 1e6, kernels * 1e6]
    return found


def processor_table(spent: Mapping[str, Mapping[str, Sequence[Spent]]], chosen: Sequence[Measure]) -> Table:
    """Medians of the processor time for each record or request, by broker and role."""
    title = "processor time in us for each record or request, and the kernel's part of it"
    shown = Table(title=title, title_justify="left")
    for heading in ("measure", "broker", "role"):
        shown.add_column(heading)
    for heading in ("us", "kernel"):
        shown.add_column(heading, justify="right")
    found = processor_us(spent)
    for measure in chosen:
        for broker, roles in found.get(measure.name, {}).items():
            for role, (total, kernel) in roles.items():
                shown.add_row(measure.lines[0].label, broker, role, f"{total:.2f}", f"{kernel:.2f}")
    return shown
