"""The configs of groups, by their Kafka names.

Kafka 4.1's GroupConfig has them for consumer groups; their defaults are the broker's configs. Beside them are facts
that only korvet tells of a group, which Kafka's clients read as configs.
"""

from __future__ import annotations

from typing import Final

from korvet.configs.types import Config, Kind, at_least, table


def _of_group(name: str, default: int, documentation: str) -> Config:
    return Config(
        name=name,
        kind=Kind.INT,
        default=str(default),
        synonym=f"group.{name}",
        documentation=documentation,
        check=at_least(1),
    )


GROUP_CONFIGS: Final = table(
    [
        _of_group("consumer.heartbeat.interval.ms", 5_000, "Time between two heartbeats of a member."),
        _of_group("consumer.session.timeout.ms", 45_000, "Silence after which a member expires."),
    ]
)
"""The configs of a group; they act on groups of the consumer protocol. The synonym is the broker's default."""

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
