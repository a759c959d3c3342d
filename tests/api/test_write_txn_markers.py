"""WriteTxnMarkers, as Admin.abortTransaction sends it for a transaction that hangs."""

from __future__ import annotations

from typing import Any

from tests.api.data import fetch, wanted
from tests.api.raw import ask, created
from tests.api.transactions import Producer, producer
from tests.support.broker import KorvetServer


def write_marker(mine: Producer, topic: str, *partitions: int, commit: bool = False, **values: Any) -> list[str]:
    """A code for each partition."""
    marker = {
        "producer_id": mine.producer_id, "producer_epoch": mine.epoch, "transaction_result": commit,
        "coordinator_epoch": 0, "topics": [{"name": topic, "partition_indexes": list(partitions or [0])}],
    }  # fmt: skip
    answer = ask(mine.port, "write_txn_markers", 1, markers=[{**marker, **values}])
    (written,) = answer["markers"]
    return [part["error_code"] for part in written["topics"][0]["partitions"]]


def ends(port: int, topic: str) -> tuple[int, int]:
    """The high watermark and the last stable offset."""
    (part,) = fetch(port, topic, wanted(0), isolation_level=1)
    return part["high_watermark"], part["last_stable_offset"]


def test_marker_aborts_an_open_transaction(broker: KorvetServer) -> None:
    topic, mine = created(broker.port, partitions=2), producer(broker.port)
    mine.sent(topic, 0, count=2)
    mine.sent(topic, 1)
    assert ends(broker.port, topic) == (2, 0)
    assert write_marker(mine, topic) == ["NONE"]
    assert ends(broker.port, topic) == (3, 3)
    # A second marker finds nothing to end, and a late batch begins no new transaction.
    assert write_marker(mine, topic) == ["NONE"]
    assert mine.send(topic)["error_code"] == "INVALID_TXN_STATE"
    assert mine.end() == "NONE"
    assert ends(broker.port, topic) == (3, 3)
    assert mine.sent(topic) == 3


def test_marker_commits_an_open_transaction(broker: KorvetServer) -> None:
    topic, mine = created(broker.port), producer(broker.port, flow=1)
    mine.sent(topic, count=2)
    assert write_marker(mine, topic, commit=True) == ["NONE"]
    assert ends(broker.port, topic) == (3, 3)


def test_impossible_markers_are_refused(broker: KorvetServer) -> None:
    topic, mine = created(broker.port), producer(broker.port)
    mine.sent(topic)
    assert mine.end() == "NONE"
    mine.sent(topic)
    assert write_marker(mine, topic, producer_epoch=mine.epoch - 1) == ["INVALID_PRODUCER_EPOCH"]
    assert write_marker(mine, topic, 0, 1, producer_id=4711) == ["NONE", "UNKNOWN_TOPIC_OR_PARTITION"]
    assert write_marker(mine, f"{topic}-none") == ["UNKNOWN_TOPIC_OR_PARTITION"]
    assert ends(broker.port, topic) == (3, 2)
