"""Members of the consumer protocol as raw requests, for the tests of its APIs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any
from uuid import UUID, uuid4

import redis

from tests.api.raw import ask

Partitions = dict[str, list[int]]
"""Topic -> partitions, ascending."""

REBALANCE_TIMEOUT_MS = 60_000


def beat(port: int, group: str, member: str, epoch: int, version: int = 1, **more: Any) -> Any:
    """A heartbeat with these fields only."""
    values = {"group_id": group, "member_id": member, "member_epoch": epoch, "rebalance_timeout": -1, **more}
    for name in ("subscribed_topic_names", "topic_partitions"):
        values.setdefault(name, None)
    return ask(port, "consumer_group_heartbeat", version, **values)


def share_beat(port: int, group: str, member: str, epoch: int, *names: str, rack: str | None = None) -> Any:
    """A heartbeat to a share group, which names topics if there are any."""
    return ask(
        port, "share_group_heartbeat", 1, group_id=group, member_id=member, member_epoch=epoch, rack_id=rack,
        subscribed_topic_names=list(names) or None,
    )  # fmt: skip


def topic_id(port: int, topic: str) -> UUID:
    asked = [{"name": topic, "topic_id": None}]
    (found,) = ask(port, "metadata", 12, topics=asked, allow_auto_topic_creation=False)["topics"]
    id: UUID = found["topic_id"]
    return id


class Member:
    """A consumer like Java's: it gives up revoked partitions at once, and names its partitions when they changed."""

    def __init__(self, port: int, group: str, id: str | None = None, **subscription: Any) -> None:
        self.port = port
        self.group = group
        self.id = id or str(uuid4())
        self.epoch = 0
        self.owned: dict[UUID, list[int]] = {}
        self.subscription = {"rebalance_timeout": REBALANCE_TIMEOUT_MS, "subscribed_topic_names": [], **subscription}
        self._says: dict[str, Any] = {}

    def join(self, **more: Any) -> Any:
        self.epoch, self.owned = 0, {}
        return self._beat(topic_partitions=[], **{**self.subscription, **more})

    def beat(self, **more: Any) -> Any:
        """One heartbeat; the next one names the member's partitions if this one's answer changed them."""
        says, self._says = self._says, {}
        return self._beat(**{**says, **more})

    def leave(self, epoch: int = -1) -> Any:
        return beat(self.port, self.group, self.id, epoch, instance_id=self.subscription.get("instance_id"))

    def _beat(self, **values: Any) -> Any:
        instance_id = self.subscription.get("instance_id")
        answer = beat(self.port, self.group, self.id, self.epoch, **{"instance_id": instance_id, **values})
        if answer["error_code"] == "NONE":
            self.epoch = answer["member_epoch"]
            if answer["assignment"] is not None:
                self._take(answer["assignment"]["topic_partitions"])
        return answer

    def _take(self, topics: Iterable[Mapping[str, Any]]) -> None:
        owned = {topic["topic_id"]: sorted(topic["partitions"]) for topic in topics}
        if owned != self.owned:
            self.owned = owned
            self._says = {"topic_partitions": [{"topic_id": id, "partitions": parts} for id, parts in owned.items()]}


def settled(*members: Member, rounds: int = 20) -> None:
    """Send members' heartbeats until the group is Stable."""
    port, group = members[0].port, members[0].group
    for _ in range(rounds):
        for member in members:
            answer = member.beat()
            assert answer["error_code"] == "NONE", answer
        if described(port, group)["group_state"] == "Stable":
            return
    raise AssertionError(f"not settled after {rounds} rounds: {described(port, group)}")


def described(port: int, group: str, version: int = 1) -> Any:
    return ask(port, "consumer_group_describe", version, group_ids=[group])["groups"][0]


def partitions_by_topic(assignment: Mapping[str, Any]) -> Partitions:
    """Topic -> partitions of an assignment of ConsumerGroupDescribe."""
    return {topic["topic_name"]: sorted(topic["partitions"]) for topic in assignment["topic_partitions"]}


ROUNDS = 20
"""Rounds of heartbeats in which a test's group is settled."""
JOIN: dict[str, Any] = {"rebalance_timeout": 1000, "topic_partitions": [], "subscribed_topic_names": ["t"]}
"""The fields of a member's first heartbeat."""


def refusal(answer: Any) -> tuple[str, str | None]:
    return answer["error_code"], answer["error_message"]


def function_calls(server: redis.Redis) -> int:
    """The number of function calls that the server has served."""
    stats: Any = server.info("commandstats")
    return sum(stats[name]["calls"] for name in ("cmdstat_fcall", "cmdstat_fcall_ro") if name in stats)
