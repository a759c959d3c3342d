"""The configs of groups, by their Kafka names.

Kafka 4.1's GroupConfig has them for consumer groups; their defaults are the broker's configs. korvet adds facts about a
group, which Kafka's clients read as configs.
"""

from __future__ import annotations

import re
from typing import Final

from korvet.configs.types import Check, Config, Kind, Value, at_least, between, one_of, table


def _of_group(name: str, default: int, documentation: str) -> Config:
    return Config(
        name=name,
        kind=Kind.INT,
        default=str(default),
        synonym=f"group.{name}",
        documentation=documentation,
        check=at_least(1),
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
_OF_SHARE: Final = "korvet has no share groups yet"
_OF_STREAMS: Final = "korvet has no streams groups"

GROUP_CONFIGS: Final = table(
    [
        _of_group("consumer.heartbeat.interval.ms", 5_000, "Time between two heartbeats of a member."),
        _of_group("consumer.session.timeout.ms", 45_000, "Silence after which a member expires."),
        _kept("share.auto.offset.reset", "latest", _offset_reset, f"Where a share group begins; {_OF_SHARE}."),
        _kept("share.heartbeat.interval.ms", 5_000, between(5_000, 15_000), f"As the consumer's; {_OF_SHARE}."),
        _kept(
            "share.isolation.level",
            "read_uncommitted",
            one_of("read_committed", "read_uncommitted"),
            f"Whether a share group reads open transactions; {_OF_SHARE}.",
        ),
        _kept(
            "share.record.lock.duration.ms",
            30_000,
            between(15_000, 60_000),
            f"How long a member may keep a record; {_OF_SHARE}.",
        ),
        _kept("share.session.timeout.ms", 45_000, between(45_000, 60_000), f"As the consumer's; {_OF_SHARE}."),
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
