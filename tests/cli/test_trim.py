"""``korvet topics trim`` on korvet and on Apache Kafka."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import confluent_kafka
import pytest

from tests.cli.conftest import Korvet
from tests.support.times import DAY, HOUR_MS, MIDNIGHT_MS

Ask = Callable[..., Any]
Produce = Callable[[str, int, Iterable[int]], None]


@pytest.fixture
def topic(korvet: Korvet, produce: Produce, name: str) -> str:
    """A topic with ten records an hour apart in partition 0, three in partition 1 and none in partition 2."""
    korvet("topics", "create", name, "--partitions", "3")
    produce(name, 0, [MIDNIGHT_MS + hour * HOUR_MS for hour in range(10)])
    produce(name, 1, [MIDNIGHT_MS] * 3)
    return name


def starts(ask: Ask, topic: str) -> list[int]:
    """The first offset of each partition."""
    return [item["start_offset"] for item in ask("topics", "describe", topic)[0]["partitions"]]


def test_trim_is_only_shown_without_execute(korvet: Korvet, ask: Ask, topic: str) -> None:
    code, out, err = korvet("topics", "trim", topic, "--before", "4")
    assert (code, err) == (1, "nothing was changed; add --execute to do it\n")
    assert [line.split()[:6] for line in out.splitlines()[1:]] == [
        [topic, "0", "0", "4", "10", "4"],
        [topic, "1", "0", "3", "3", "3"],
        [topic, "2", "0", "0", "0", "0"],
    ]
    assert starts(ask, topic) == [0, 0, 0]


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["--before", "4"], [4, 3, 0]),
        (["--before", "4", "--partition", "0"], [4, 0, 0]),
        (["--before", f"{DAY}T03:00:00Z"], [3, 3, 0]),
        (["--before", "3650d"], [0, 0, 0]),
        # In milliseconds since 1970 this is -1, which asks a broker for the end.
        (["--before", "1969-12-31T23:59:59.999Z"], [0, 0, 0]),
        (["--before", "99999999999999999999"], [10, 3, 0]),
        (["--keep", "2"], [8, 1, 0]),
        (["--keep", "0"], [10, 3, 0]),
        (["--keep", "1GiB"], [0, 0, 0]),
        (["--keep", "0b"], [10, 3, 0]),
        (["--all"], [10, 3, 0]),
        (["--all", "-p", "1", "-p", "2"], [0, 3, 0]),
    ],
)
def test_oldest_records_are_removed(
    korvet: Korvet, ask: Ask, topic: str, flags: list[str], expected: list[int]
) -> None:
    assert korvet("topics", "trim", topic, *flags, "--execute")[0] == 0
    assert starts(ask, topic) == expected


def test_size_is_kept_by_the_average_record(korvet: Korvet, ask: Ask, topic: str) -> None:
    planned = ask("topics", "trim", topic, "--partition", "0", "--keep", "150B", "--execute")
    (size,) = (item["bytes"] for item in planned)
    assert starts(ask, topic)[0] == 10 - 10 * 150 // size
    assert planned[0]["left_bytes"] <= 150


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        ([], "name the records to remove: exactly one of --before, --keep, --all"),
        (["--all", "--keep", "1"], "name the records to remove: exactly one of --before, --keep, --all"),
        (
            ["--keep", "much"],
            "invalid value for --keep: 'much' is no number of records and no size; want 1000, or a size such as",
        ),
        (["--before", "soon"], "invalid value for '--before': 'soon' is no time; want one such as"),
        (["--all", "--execute", "--dry-run"], "--dry-run and --execute exclude each other"),
    ],
)
def test_trim_needs_exactly_one_goal(korvet: Korvet, flags: list[str], sentence: str) -> None:
    code, _, err = korvet("topics", "trim", "any", *flags)
    assert (code, err.startswith(f"korvet: {sentence}"), err.count("\n")) == (2, True, 1), err


def test_topic_that_is_only_compacted_is_not_trimmed(korvet: Korvet, bootstrap: str, name: str) -> None:
    korvet("topics", "create", name, "-p", "1", "--config", "cleanup.policy=compact")
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap})
    producer.produce(name, key=b"k", value=b"v")
    assert producer.flush(30) == 0
    code, _, err = korvet("topics", "trim", name, "--all", "--execute")
    refusal = f"korvet: partition {name}-0: POLICY_VIOLATION; the topic is only compacted"
    assert (code, err.startswith(refusal)) == (1, True), err
