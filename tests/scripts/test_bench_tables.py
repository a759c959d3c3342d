"""The tables of scripts/bench, from values that rounds gave, and what it says instead of measuring."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console
from rich.table import Table

from scripts.benchmark.calls import Counts, rows, system_calls
from scripts.benchmark.growth import Growth
from scripts.benchmark.measures import Line, Measure, measures
from scripts.benchmark.processes import ProcessorTime
from scripts.benchmark.rounds import Results, Spent, differs
from scripts.benchmark.tables import growth_table, processor_table, processor_us, table
from scripts.benchmark.walk import Act, Function, Walk

ROOT = Path(__file__).parents[2]
HANGS_S = 500.0
"""A time that only a process that hangs takes, even on a busy machine. pytest ends a test after 600 s."""
FAST = Line(key="records_s", label="one producer", unit="records/s")
SLOW = Line(key="p99_ms", label="99th percentile", unit="ms", less_is_better=True)
MEASURE = Measure(name="produce", group="produce", generator="librdkafka", job={}, lines=(FAST, SLOW))
GROWTH = Growth(title="Partitions", headings=("count", "ms"), rows=(("1", "0.50"), ("1,000", "2.25")))


def shown(one: Table) -> Iterator[list[str]]:
    """The cells of each of the table's rows."""
    console = Console(file=StringIO(), width=200)
    console.print(one)
    printed = console.file
    assert isinstance(printed, StringIO)
    for line in printed.getvalue().splitlines():
        if line.startswith("│"):
            yield [cell.strip() for cell in line.strip("│").split("│")]


def test_table_has_medians_and_how_many_times_better_the_first_broker_is() -> None:
    results = Results()
    results.values["produce", "records_s"].update(korvet=[1000.0, 3000.0, 2000.0], kafka=[1000.0])
    results.values["produce", "p99_ms"].update(korvet=[4.0, 2.0], kafka=[1.5])
    assert list(shown(table(results.values, [MEASURE], ["korvet", "kafka", "before"]))) == [
        ["one producer", "librdkafka", "records/s", "2,000", "1,000", "-", "2.00", "-"],
        ["99th percentile", "librdkafka", "ms", "3.00", "1.50", "-", "0.50", "-"],
    ]


def test_processor_time_is_that_of_a_record_by_the_median_of_the_rounds() -> None:
    rounds = [Spent({"client": ProcessorTime(user_s=seconds, kernel_s=1.0)}, 1_000_000) for seconds in (1.0, 3.0, 9.0)]
    spent = {"produce": {"korvet": [*rounds, Spent({}, 0)], "kafka": [Spent({}, 0)]}}
    assert processor_us(spent) == {"produce": {"korvet": {"client": [4.0, 1.0]}}}
    assert list(shown(processor_table(spent, [MEASURE]))) == [["one producer", "korvet", "client", "4.00", "1.00"]]


def test_costs_of_a_request_are_compared_with_the_floors() -> None:
    spent = {
        "heartbeat": {
            name: [
                Spent({role: ProcessorTime(user_s=user_s, kernel_s=0.5), **redis}, 1_000_000) for user_s in (1, 2, 3)
            ]
            for name, role, redis in (
                ("floor", "front-end", {"Redis": ProcessorTime(1.0, 0.0)}),
                ("korvet", "front-end", {}),
                ("kafka", "Kafka", {}),
            )
        }
    }
    counts = {
        "floor": {"heartbeat": Counts(7.0, 14.0, 6.0, 1.0)},
        "korvet": {"heartbeat": Counts(50.0, 43.0, 6.04, 1.0)},
    }
    assert rows(spent, counts) == [
        (
            "heartbeat", "2.5 (0.5), 2.5 (0.5), 2.5 (0.5)", "1.00, 1.00", "1.0", "7.0, 50.0", "14.0, 43.0", "6.0, 6.0",
            "1.0, 1.0",
        )
    ]  # fmt: skip


@pytest.mark.parametrize("errors", ["", "12"])
def test_system_calls_are_the_total_of_straces_summary(errors: str) -> None:
    summary = f"""\
% time     seconds  usecs/call     calls    errors syscall
------ ----------- ----------- --------- --------- ----------------
 60.00    0.000600           6       100           read
 40.00    0.000400           4       100 {errors:>9} epoll_pwait
------ ----------- ----------- --------- --------- ----------------
100.00    0.001000           5       200 {errors:>9} total
"""
    assert system_calls(summary) == 200


def test_walk_shows_each_step_up_to_its_act_and_repeats_nothing() -> None:
    take, send, pack = Function("a.py", "A.take"), Function("a.py", "A.send"), Function("b.py", "pack")
    walk = Walk((Act((take, send, pack), "packs"), Act((take,), "ends")), (), ())
    assert [line.split() for line in walk.lines()] == [
        ["a.py", "A.take", ">", "send"],
        ["b.py", "pack"],
        ["=", "packs"],
        ["=", "ends"],
    ]
    assert (walk.frames, walk.files, walk.depth) == (3, 2, 3)


def test_growth_is_a_table_with_a_row_for_each_size() -> None:
    assert list(shown(growth_table(GROWTH))) == [list(row) for row in GROWTH.rows]
    assert (
        GROWTH.markdown()
        == """\
### Partitions

| count | ms |
| --- | --- |
| 1 | 0.50 |
| 1,000 | 2.25 |
"""
    )


@pytest.mark.parametrize(("values", "is_told"), [([10, 11, 10, 11], False), ([10, 20, 10, 20], True), ([10], False)])
def test_rounds_differ_if_the_odd_ones_are_far_from_the_even_ones(values: list[float], is_told: bool) -> None:
    measure = measures(0.5)[0]
    results = Results()
    results.values[measure.name, measure.lines[0].key]["korvet"] = values
    assert differs(results, measure, 0.1) is is_told


def test_error_names_an_unknown_group_of_measures() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "scripts.benchmark", "--only", "speed"],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=HANGS_S,
    )  # fmt: skip
    assert done.returncode == 2
    assert (
        "speed; known: produce, consume, latency, groups, shares, scale, consumers, process, neighbours, pipeline"
        in done.stderr
    )


def test_error_names_a_tool_that_profiles_need(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "scripts.benchmark", "--only", "groups", "--profile", str(tmp_path / "profiles")],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=HANGS_S, env={"PATH": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 2
    assert "--profile needs perf, which is not installed; install it: apt-get install linux-perf" in done.stderr
