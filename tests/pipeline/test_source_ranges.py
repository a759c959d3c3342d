"""Shares of tasks and triggers in a query's offsets: the cases of Spark's KafkaOffsetRangeCalculatorSuite."""

from __future__ import annotations

import pytest

from korvet.pipeline.plan.batch import shared
from korvet.pipeline.source.ranges import OffsetRange, split

Range = tuple[int, int, int]
"""The topic's number, start and end."""


def ranges(*found: Range) -> list[OffsetRange]:
    return [OffsetRange(f"t{topic}", 1, start, end) for topic, start, end in found]


@pytest.mark.parametrize(
    ("min_partitions", "given", "expected"),
    [
        pytest.param(None, [(1, 1, 2)], [(1, 1, 2)], id="none wanted"),
        pytest.param(None, [(1, 1, 2), (2, 1, 1)], [(1, 1, 2)], id="none wanted, empty ones left out"),
        pytest.param(None, [(1, 5, 2)], [], id="none wanted, one that went back left out"),
        pytest.param(
            3, [(1, 1, 2), (2, 1, 2), (3, 1, 2)], [(1, 1, 2), (2, 1, 2), (3, 1, 2)], id="as many as there are"
        ),
        pytest.param(4, [(1, 1, 5)], [(1, 1, 2), (1, 2, 3), (1, 3, 4), (1, 4, 5)], id="one to many"),
        pytest.param(
            4, [(1, 1, 5), (2, 1, 21)], [(1, 1, 5), (2, 1, 7), (2, 7, 14), (2, 14, 21)], id="skewed ones to many"
        ),
        pytest.param(
            4,
            [(1, 1, 1), (2, 1, 21)],
            [(2, 1, 6), (2, 6, 11), (2, 11, 16), (2, 16, 21)],
            id="SPARK-30656: ignore empty ranges and split the rest",
        ),
        pytest.param(
            4,
            [(1, 1, 2), (2, 1, 1001)],
            [(1, 1, 2), (2, 1, 334), (2, 334, 667), (2, 667, 1001)],
            id="SPARK-30656: very skewed",
        ),
        pytest.param(1, [(1, 1, 5), (2, 1, 21)], [(1, 1, 5), (2, 1, 21)], id="SPARK-30656: fewer than there are"),
        pytest.param(3, [(1, 1, 11)], [(1, 1, 4), (1, 4, 7), (1, 7, 11)], id="inexact multiple"),
        pytest.param(
            6,
            [(1, 0, 10), (2, 0, 10), (3, 0, 1)],
            [(1, 0, 3), (1, 3, 6), (1, 6, 10), (2, 0, 3), (2, 3, 6), (2, 6, 10), (3, 0, 1)],
            id="SPARK-28489: never drop offsets",
        ),
        pytest.param(
            9,
            [(1, 0, 10000), (2, 0, 15000), (3, 0, 20000)],
            [
                *[(1, 0, 5000), (1, 5000, 10000)],
                *[(2, 0, 5000), (2, 5000, 10000), (2, 10000, 15000)],
                *[(3, 0, 5000), (3, 5000, 10000), (3, 10000, 15000), (3, 15000, 20000)],
            ],
            id="SPARK-36576: three large ranges",
        ),
        pytest.param(
            6,
            [(1, 0, 500), (2, 0, 12000), (3, 0, 15001)],
            [(1, 0, 500), (2, 0, 6000), (2, 6000, 12000), (3, 0, 5000), (3, 5000, 10000), (3, 10000, 15001)],
            id="SPARK-36576: one small range and two large ones",
        ),
        pytest.param(
            6,
            [(1, 0, 1), (2, 0, 1), (3, 0, 10000)],
            [(1, 0, 1), (2, 0, 1), (3, 0, 2500), (3, 2500, 5000), (3, 5000, 7500), (3, 7500, 10000)],
            id="SPARK-36576: two small ranges and a large one",
        ),
    ],
)
def test_split_makes_the_least_number_of_tasks(
    min_partitions: int | None, given: list[Range], expected: list[Range]
) -> None:
    assert split(ranges(*given), min_partitions) == ranges(*expected)


def test_split_keeps_ranges_below_the_most_records() -> None:
    assert split(ranges((1, 0, 10), (2, 0, 3)), None, 4) == ranges((1, 0, 3), (1, 3, 6), (1, 6, 10), (2, 0, 3))
    assert split(ranges((1, 0, 8)), 4, 4) == ranges((1, 0, 2), (1, 2, 4), (1, 4, 6), (1, 6, 8))


def test_trigger_takes_of_each_partition_in_proportion() -> None:
    start = {("t", 0): 0, ("t", 1): 100, ("t", 2): 7}
    latest = {("t", 0): 900, ("t", 1): 200, ("t", 2): 7}
    assert shared(100, start, latest) == {("t", 0): 90, ("t", 1): 110, ("t", 2): 7}


def test_trigger_starves_no_small_partition() -> None:
    assert shared(10, {("t", 0): 0, ("t", 1): 0}, {("t", 0): 1000, ("t", 1): 1}) == {("t", 0): 9, ("t", 1): 1}


def test_trigger_goes_no_further_than_the_end() -> None:
    assert shared(10**19, {("t", 0): 0}, {("t", 0): 5}) == {("t", 0): 5}
    assert shared(10, {("t", 0): 9}, {("t", 0): 5}) == {("t", 0): 5}
