"""Members of groups as raw requests, for the tests of the group APIs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.api.raw import ask

PROTOCOLS = [{"name": "range", "metadata": b"metadata"}]


def join(port: int, group: str, member: str = "", version: int = 9, **more: Any) -> Any:
    """JoinGroup; sessions are of 30 s."""
    usual = {"session_timeout": 30_000, "rebalance_timeout": 60_000, "protocol_type": "consumer"}
    values = {**usual, "group_id": group, "member_id": member, "protocols": PROTOCOLS, **more}
    return ask(port, "join_group", version, **values)


def entered(port: int, group: str, **more: Any) -> Any:
    """A new dynamic member's join, with the id from its first request."""
    first = join(port, group, **more)
    assert first["error_code"] == "MEMBER_ID_REQUIRED", first
    return join(port, group, first["member_id"], **more)


def sync(port: int, group: str, member: str, generation: int, assignments: Mapping[str, bytes] | None = None) -> Any:
    given = [{"member_id": name, "assignment": data} for name, data in (assignments or {}).items()]
    values = {"group_id": group, "member_id": member, "generation_id": generation, "assignments": given}
    return ask(port, "sync_group", 5, protocol_type="consumer", protocol_name="range", **values)


def stable(port: int, group: str) -> str:
    """The only member of a Stable group, at generation 1."""
    joined = entered(port, group)
    assert joined["error_code"] == "NONE", joined
    member: str = joined["member_id"]
    assert sync(port, group, member, joined["generation_id"], {member: b"all"})["assignment"] == b"all"
    return member


def heartbeat(port: int, group: str, member: str, generation: int = 1) -> str:
    code: str = ask(port, "heartbeat", 4, group_id=group, member_id=member, generation_id=generation)["error_code"]
    return code


def leave(port: int, group: str, *members: str) -> Any:
    return ask(port, "leave_group", 5, group_id=group, members=[{"member_id": member} for member in members])


def commit(port: int, group: str, topic: str, *offsets: int, metadata: str = "", **more: Any) -> list[str]:
    """Commit offsets of partitions 0, 1, …: a code for each."""
    rows = [
        {"partition_index": index, "committed_offset": offset, "committed_metadata": metadata}
        for index, offset in enumerate(offsets)
    ]
    values = {"member_id": "", "generation_id_or_member_epoch": -1, **more}
    topics = [{"name": topic, "partitions": rows}]
    answer = ask(port, "offset_commit", 9, group_id=group, topics=topics, **values)
    return [row["error_code"] for one in answer["topics"] for row in one["partitions"]]


def committed(port: int, group: str, topic: str, *partitions: int) -> list[int]:
    """The offsets committed for partitions of a topic."""
    asked = [{"group_id": group, "topics": [{"name": topic, "partition_indexes": list(partitions)}]}]
    (answer,) = ask(port, "offset_fetch", 9, groups=asked)["groups"]
    assert answer["error_code"] == "NONE", answer
    return [row["committed_offset"] for one in answer["topics"] for row in one["partitions"]]


def listed(port: int) -> dict[str, str]:
    """The state of every group."""
    answer = ask(port, "list_groups", 5)
    assert answer["error_code"] == "NONE", answer
    return {group["group_id"]: group["group_state"] for group in answer["groups"]}


def described(port: int, group: str) -> Any:
    return ask(port, "describe_groups", 6, groups=[group])["groups"][0]


def deleted(port: int, *groups: str) -> list[str]:
    return [result["error_code"] for result in ask(port, "delete_groups", 2, groups_names=list(groups))["results"]]
