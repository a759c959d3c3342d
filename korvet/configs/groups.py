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


def _kept(name: str, default: int | str, check: Check, documentation: str) -> Config:
    """A config of a group type that korvet does not serve."""
    kind = Kind.INT if isinstance(default, int) else Kind.STRING
    return Config(name=name, kind=kind, default=str(default), documentation=documentation, check=check)


def _offset_reset(value: Value) -> str | None:
    """ShareGroupAutoOffsetResetStrategy: ``earliest``, ``latest``, or ``by_duration:`` with an ISO 8601 duration."""
    if _OFFSET_RESET.fullmatch(str(value)):
        return None
    return "Value must be earliest, latest or by_duration:PnDTnHnMn.nS"


_OFFSET_RESET = re.compile(
    r"earliest|latest|by_duration:P(?=.)(\d+D)?(T(?=.)(\d+H)?(\d+M)?(\d+([.,]\d{0,9})?S)?)?", re.IGNORECASE
)
_LONGEST_BACKOFF_MS: Final = 86_400_000
_OF_STREAMS: Final = "korvet has no streams groups"

GROUP_CONFIGS: Final = table(
    [
        _of_group("consumer.heartbeat.interval.ms", 5_000, "Time between two heartbeats of a member."),
        _of_group("consumer.session.timeout.ms", 45_000, "Silence after which a member expires."),
        Config(
            name="share.auto.offset.reset",
            kind=Kind.STRING,
            default="latest",
            documentation="Where a share group begins in a partition: earliest, latest, or by_duration:PnDTnHnMn.nS.",
            check=_offset_reset,
        ),
        _of_group("share.delivery.count.limit", 5, "How often a record is delivered.", 2),
        _of_group("share.heartbeat.interval.ms", 5_000, "Time between two heartbeats of a member of a share group."),
        Config(
            name="share.isolation.level",
            kind=Kind.STRING,
            default="read_uncommitted",
            documentation="Whether a share group gets records of transactions before they are committed.",
            check=one_of("read_committed", "read_uncommitted"),
        ),
        _of_group("share.partition.max.record.locks", 2_000, "The most offsets of a partition in flight.", 100),
        _of_group("share.record.lock.duration.ms", 30_000, "How long a member may keep a record.", 1_000),
        Config(
            name="share.renew.acknowledge.enable",
            kind=Kind.BOOLEAN,
            default="true",
            documentation="Whether a member may keep a record for longer.",
        ),
        _of_group("share.session.timeout.ms", 45_000, "Silence after which a member of a share group expires."),
        _retry("backoff.ms", 0, "Time between a record's first delivery and the next one, twice as long each time."),
        _retry("backoff.max.ms", 60_000, "The longest time between two deliveries of a record."),
        _kept("streams.heartbeat.interval.ms", 5_000, between(5_000, 15_000), f"As the consumer's; {_OF_STREAMS}."),
        _kept("streams.num.standby.replicas", 0, between(0, 2), f"Copies of a task's state; {_OF_STREAMS}."),
        _kept("streams.session.timeout.ms", 45_000, between(45_000, 60_000), f"As the consumer's; {_OF_STREAMS}."),
    ]
)
"""The configs of a group. A synonym is the broker's default; configs without one are kept and shown, and do nothing."""

GROUP_FACTS: Final = table(
    [
        Config(
            name="korvet.group.id",
            kind=Kind.STRING,
            default=None,
            documentation="The group's own id. It stays while the group exists, whichever members come and go.",
            read_only=True,
        ),
        Config(
            name="korvet.group.locator",
            kind=Kind.STRING,
            default=None,
            documentation="The group as a resource: <namespace>/consumer-groups/<group>.",
            read_only=True,
        ),
        Config(
            name="korvet.group.waits",
            kind=Kind.STRING,
            default=None,
            documentation="The members for which the group waits, with semicolons between. A classic group waits for "
            "members that have to join its rebalance, and their deadlines follow. A group of the consumer protocol "
            "waits for members that have to give up partitions.",
            read_only=True,
        ),
    ]
)
