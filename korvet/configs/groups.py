"""The configs of groups, by their Kafka names.

Kafka's GroupConfig has them for consumer groups and share groups; their defaults are the broker's configs. korvet adds
facts about a group, which Kafka's clients read as configs.
"""

from __future__ import annotations

import re
from typing import Final

from korvet.configs.types import Check, Config, Kind, Value, at_least, between, one_of, table


def _of_group(name: str, default: int, documentation: str, least: int = 1) -> Config:
    return Config(
        name=name,
        kind=Kind.INT,
        default=str(default),
        synonym=f"group.{name}",
        documentation=documentation,
        check=at_least(least),
    )


def _retry(name: str, default: int, documentation: str) -> Config:
    return Config(
        name=f"korvet.share.retry.{name}",
        kind=Kind.INT,
        default=str(default),
        documentation=documentation,
        check=between(0, _LONGEST_BACKOFF_MS),
    )


def _kept(name: str, kind: Kind, default: str, documentation: str, check: Check | None = None) -> Config:
    """A config that is kept and shown, and does nothing."""
    return Config(name=name, kind=kind, default=default, documentation=documentation, check=check)


def _offset_reset(value: Value) -> str | None:
    """ShareGroupAutoOffsetResetStrategy: ``earliest``, ``latest``, or ``by_duration:`` with an ISO 8601 duration."""
    if _OFFSET_RESET.fullmatch(str(value)):
        return None
    return "Value must be earliest, latest or by_duration:PnDTnHnMn.nS"


def _dead_letter_topic(value: Value) -> str | None:
    return "DLQ topic name must not start with '__'" if str(value).startswith("__") else None


_OFFSET_RESET = re.compile(
    r"earliest|latest|by_duration:(?i:P(?=.)(\d+D)?(T(?=.)(\d+H)?(\d+M)?(\d+([.,]\d{0,9})?S)?)?)"
)
_LONGEST_BACKOFF_MS: Final = 86_400_000
_AT_ONCE: Final = "It does nothing: a new target is made at once."
_IN_THREAD: Final = "It does nothing: a thread computes the targets of large groups."
_OF_STREAMS: Final = "It does nothing: korvet has no streams groups."
_INTERVAL: Final = Kind.INT, "1000", _AT_ONCE, between(0, 15_000)
_OFFLOAD: Final = Kind.BOOLEAN, "true", _IN_THREAD

GROUP_CONFIGS: Final = table(
    [
        _kept("consumer.assignment.interval.ms", *_INTERVAL),
        _kept("consumer.assignor.offload.enable", *_OFFLOAD),
        _of_group("consumer.heartbeat.interval.ms", 5_000, "Time between two heartbeats of a member."),
        _of_group("consumer.session.timeout.ms", 45_000, "Silence after which a member expires."),
        Config("errors.deadletterqueue.copy.record.enable", Kind.BOOLEAN, "false",
               documentation="Whether a dead letter has the record's key, value and headers."),
        Config("errors.deadletterqueue.topic.name", Kind.STRING, "", check=_dead_letter_topic,
               documentation="The topic to which a share group's records go that failed; none if empty."),
        _kept("share.assignment.interval.ms", *_INTERVAL),
        _kept("share.assignor.offload.enable", *_OFFLOAD),
        Config("share.auto.offset.reset", Kind.STRING, "latest", check=_offset_reset,
               documentation="Where a share group begins in a partition: earliest, latest, or "
               "by_duration:PnDTnHnMn.nS."),
        _of_group("share.delivery.count.limit", 5, "How often a record is delivered.", 2),
        _of_group("share.heartbeat.interval.ms", 5_000, "Time between two heartbeats of a member of a share group."),
        Config("share.isolation.level", Kind.STRING, "read_uncommitted",
               check=one_of("read_committed", "read_uncommitted"),
               documentation="Whether a share group gets records of transactions before they are committed."),
        _of_group("share.partition.max.record.locks", 2_000, "The most offsets of a partition in flight.", 100),
        _of_group("share.record.lock.duration.ms", 30_000, "How long a member may keep a record.", 1_000),
        Config("share.renew.acknowledge.enable", Kind.BOOLEAN, "true",
               documentation="Whether a member may keep a record for longer."),
        _of_group("share.session.timeout.ms", 45_000, "Silence after which a member of a share group expires."),
        Config("korvet.share.delivery.time.header", Kind.STRING, "",
               documentation="The header with the time, ms since 1970, before which nobody gets a record; none if "
               "empty."),
        _retry("backoff.ms", 0, "Time between a record's first delivery and the next one, twice as long each time."),
        _retry("backoff.max.ms", 60_000, "The longest time between two deliveries of a record."),
        _kept("streams.acceptable.recovery.lag", Kind.LONG, "10000", _OF_STREAMS, at_least(0)),
        _kept("streams.assignment.interval.ms", Kind.INT, "1000", _OF_STREAMS, between(0, 15_000)),
        _kept("streams.assignor.offload.enable", Kind.BOOLEAN, "true", _OF_STREAMS),
        _kept("streams.heartbeat.interval.ms", Kind.INT, "5000", _OF_STREAMS, between(5_000, 15_000)),
        _kept("streams.initial.rebalance.delay.ms", Kind.INT, "3000", _OF_STREAMS, at_least(0)),
        _kept("streams.num.standby.replicas", Kind.INT, "0", _OF_STREAMS, between(0, 2)),
        _kept("streams.num.warmup.replicas", Kind.INT, "2", _OF_STREAMS, at_least(0)),
        _kept("streams.rack.aware.assignment.tags", Kind.LIST, "", _OF_STREAMS),
        _kept("streams.session.timeout.ms", Kind.INT, "45000", _OF_STREAMS, between(45_000, 60_000)),
        _kept("streams.task.offset.interval.ms", Kind.INT, "60000", _OF_STREAMS, at_least(15_000)),
    ]
)  # fmt: skip
"""The configs of a group. A synonym is the broker's default; configs without one are kept and shown, and do nothing."""

GROUP_FACTS: Final = table(
    [
        Config("korvet.group.id", Kind.STRING, None, read_only=True,
               documentation="The group's own id. It stays while the group exists, whichever members come and go."),
        Config("korvet.group.locator", Kind.STRING, None, read_only=True,
               documentation="The group as a resource: <namespace>/consumer-groups/<group>."),
        Config("korvet.group.waits", Kind.STRING, None, read_only=True,
               documentation="The members for which the group waits, with semicolons between. A classic group waits "
               "for members that have to join its rebalance, and their deadlines follow. A group of the consumer "
               "protocol waits for members that have to give up partitions."),
    ]
)  # fmt: skip
