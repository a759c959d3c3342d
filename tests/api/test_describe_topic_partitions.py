"""DescribeTopicPartitions pages through partitions as Apache Kafka 4.1.2 does."""

from typing import Any

import pytest

from tests.api.raw import ask, created, unique
from tests.support.broker import KorvetServer


def describe(broker: KorvetServer, *names: str, limit: int = 2000, cursor: tuple[str, int] | None = None) -> Any:
    position = None if cursor is None else {"topic_name": cursor[0], "partition_index": cursor[1]}
    topics = [{"name": name} for name in names]
    return ask(
        broker.port,
        "describe_topic_partitions",
        0,
        topics=topics,
        response_partition_limit=limit,
        cursor=position,
    )


def page(answer: Any) -> tuple[list[tuple[str, list[int]]], tuple[str, int] | None]:
    """Names with their partitions, and the cursor."""
    shown = [
        (topic["name"], [partition["partition_index"] for partition in topic["partitions"]])
        for topic in answer["topics"]
    ]
    cursor = answer["next_cursor"]
    return shown, None if cursor is None else (cursor["topic_name"], cursor["partition_index"])


@pytest.fixture(scope="module")
def pair(broker: KorvetServer) -> tuple[str, str]:
    """Two topics of two partitions, in the order of their names."""
    base = unique()
    return created(broker.port, f"{base}-a", 2), created(broker.port, f"{base}-b", 2)


def test_pages_end_at_the_limit_and_the_cursor_names_the_next(broker: KorvetServer, pair: tuple[str, str]) -> None:
    a, b = pair
    expected = {
        -1: ([(a, [0])], (a, 1)),
        0: ([(a, [0])], (a, 1)),
        1: ([(a, [0])], (a, 1)),
        2: ([(a, [0, 1])], (b, 0)),
        3: ([(a, [0, 1]), (b, [0])], (b, 1)),
        4: ([(a, [0, 1]), (b, [0, 1])], None),
    }
    assert {limit: page(describe(broker, a, b, limit=limit)) for limit in expected} == expected


def test_a_cursor_starts_within_a_topic(broker: KorvetServer, pair: tuple[str, str]) -> None:
    a, b = pair
    assert page(describe(broker, a, b, limit=1, cursor=(b, 1))) == ([(b, [1])], None)
    assert page(describe(broker, a, b, limit=1, cursor=(a, 1))) == ([(a, [1])], (b, 0))
    assert page(describe(broker, a, b, limit=1, cursor=(a, 9))) == ([(a, []), (b, [0])], (b, 1))


def test_all_topics_are_paged_from_the_next_name(broker: KorvetServer, pair: tuple[str, str]) -> None:
    a, b = pair
    assert page(describe(broker, limit=2, cursor=(a[:-1], 1))) == ([(a, [0, 1])], (b, 0))


@pytest.mark.parametrize("index", [0, -1])
def test_a_cursor_that_does_not_fit_the_request_is_refused(
    broker: KorvetServer, pair: tuple[str, str], index: int
) -> None:
    cursor = (pair[0], -1) if index else (f"{pair[0]}x", 0)
    answer = describe(broker, *pair, limit=1, cursor=cursor)
    assert [topic["error_code"] for topic in answer["topics"]] == ["INVALID_REQUEST"] * 2
