"""Cluster-wide settings act on topics without their own as soon as they are changed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from korvet.configs.topics import TOPIC_CONFIGS
from tests.api.data import batches_of, fetch, now_ms, produce, produced, records, wanted
from tests.api.raw import ask, created
from tests.store.keyed import keyed
from tests.support.broker import KorvetServer, running_broker
from tests.support.waiting import until

HOUR_MS = 3_600_000
QUICK = {"log.retention.check.interval.ms": "50", "log.cleaner.backoff.ms": "50"}


@pytest.fixture(scope="module")
def broker() -> Iterator[KorvetServer]:
    with running_broker(broker=QUICK) as running:
        yield running


def alter(port: int, configs: dict[str, str | None]) -> None:
    """Set the configs that have a value, and delete the others."""
    changes = [
        {"name": name, "config_operation": int(value is None), "value": value} for name, value in configs.items()
    ]
    resources = [{"resource_type": 4, "resource_name": "", "configs": changes}]
    (answer,) = ask(port, "incremental_alter_configs", 1, resources=resources, validate_only=False)["responses"]
    assert answer["error_code"] == "NONE", answer


@contextmanager
def everywhere(port: int, **configs: str) -> Iterator[None]:
    """The names with underscores for dots."""
    named = {name.replace("_", "."): value for name, value in configs.items()}
    alter(port, dict(named))
    try:
        yield
    finally:
        alter(port, dict.fromkeys(named))


def code(port: int, topic: str, **values: Any) -> str:
    return str(produce(port, topic, records(1, 500, **values))["error_code"])


@pytest.mark.parametrize(
    "name, value, own, timestamp_ms, refused",
    [
        ("message.max.bytes", "300", {"max_message_bytes": "100000"}, 0, "MESSAGE_TOO_LARGE"),
        (
            "log.message.timestamp.after.max.ms",
            "1000",
            {"message_timestamp_after_max_ms": str(HOUR_MS)},
            HOUR_MS // 2,
            "INVALID_TIMESTAMP",
        ),
        (
            "log.message.timestamp.before.max.ms",
            "1000",
            {"message_timestamp_before_max_ms": str(HOUR_MS)},
            -HOUR_MS // 2,
            "INVALID_TIMESTAMP",
        ),
        ("log.cleanup.policy", "compact", {"cleanup_policy": "delete"}, 0, "INVALID_RECORD"),
    ],
)
def test_cluster_wide_settings_decide_which_batches_a_topic_takes(
    broker: KorvetServer, name: str, value: str, own: dict[str, str], timestamp_ms: int, refused: str
) -> None:
    plain, other = created(broker.port), created(broker.port, None, 1, **own)
    at = {"timestamp": now_ms() + timestamp_ms}
    assert code(broker.port, plain, **at) == "NONE"
    with everywhere(broker.port, **{name.replace(".", "_"): value}):
        assert (code(broker.port, plain, **at), code(broker.port, other, **at)) == (refused, "NONE")
    assert code(broker.port, plain, **at) == "NONE"


def test_cluster_wide_settings_decide_how_batches_are_stored(broker: KorvetServer) -> None:
    plain = created(broker.port)
    other = created(broker.port, message_timestamp_type="CreateTime", compression_type="producer")
    with everywhere(broker.port, log_message_timestamp_type="LogAppendTime", compression_type="gzip"):
        made, kept = [produce(broker.port, topic, records(1, 500)) for topic in (plain, other)]
    assert (made["error_code"], kept["error_code"]) == ("NONE", "NONE")
    assert made["log_append_time"] is not None
    assert kept["log_append_time"] is None
    found = [batches_of(fetch(broker.port, topic, wanted(0))[0])[0]["attributes"] for topic in (plain, other)]
    assert found == [1 | 8, 0]


@pytest.mark.parametrize(
    "configs, own",
    [({"log_retention_ms": "1000"}, {"retention_ms": "-1"}), ({"log_retention_bytes": "0"}, {"retention_bytes": "-1"})],
)
def test_cluster_wide_settings_decide_which_records_retention_keeps(
    broker: KorvetServer, configs: dict[str, str], own: dict[str, str]
) -> None:
    plain, other = created(broker.port), created(broker.port, None, 1, **own)
    for topic in (plain, other):
        produced(broker.port, topic, records(2, timestamp=now_ms() - HOUR_MS))
    with everywhere(broker.port, **configs):
        until(lambda: start_of(broker.port, plain) == 2)
        # The sweep passes the other topic too, whose own setting keeps its records.
        assert start_of(broker.port, other) == 0


def start_of(port: int, topic: str) -> int:
    return int(fetch(port, topic, wanted(2))[0]["log_start_offset"])


def test_cluster_wide_settings_decide_which_records_compaction_removes(broker: KorvetServer) -> None:
    def batches(topic: str) -> int:
        return len(batches_of(fetch(broker.port, topic, wanted(0))[0]))

    plain, late = created(broker.port), created(broker.port, min_compaction_lag_ms=str(HOUR_MS))
    for topic in (plain, late):
        produced(broker.port, topic, *[keyed((b"key", b"%d" % number), timestamp=now_ms()) for number in range(5)])
    eager = {"log_cleanup_policy": "compact", "log_cleaner_min_cleanable_ratio": "0.01"}
    with everywhere(broker.port, **eager, log_cleaner_min_compaction_lag_ms="0"):
        until(lambda: batches(plain) == 2)
        assert batches(late) == 5


def test_every_acting_setting_of_kafka_has_a_cluster_wide_one() -> None:
    assert {name for name, config in TOPIC_CONFIGS.items() if not config.synonym and "korvet" not in name} == {
        "errors.deadletterqueue.group.enable",
        "follower.replication.throttled.replicas",
        "leader.replication.throttled.replicas",
        "remote.log.copy.disable",
        "remote.log.delete.on.disable",
        "remote.storage.enable",
    }
