"""What the console changes if it may: offsets, groups and members. Each change is one request that may be repeated."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlencode

from starlette.exceptions import HTTPException

from korvet.cli.console import asked
from korvet.cli.console.cluster import existing_group
from korvet.cli.kafka.client import Client
from korvet.cli.kafka.groups import delete_group
from korvet.cli.kafka.members import chosen_members, remove_member
from korvet.cli.kafka.offsets import commit_offsets
from korvet.cli.kafka.reset import Goal, Reset, parse_time, plan_reset

GOALS: Final = ("to_earliest", "to_latest", "to_offset", "to_datetime", "shift_by")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a reset would do; the page asks whether to do it."""

    group: str
    topic: str
    goal: str
    at: str
    resets: list[Reset]


Change = Callable[[Client, Mapping[str, str]], Plan | str]
DONE: Final = {
    "reset": "The offsets are reset.",
    "deleted": "The group is deleted.",
    "removed": "The member is removed. It joins again if its client goes on.",
}
"""What a page says after a change."""


def _reset(client: Client, fields: Mapping[str, str]) -> Plan | str:
    group, topic = asked.text(fields, "id"), asked.text(fields, "topic")
    kind, at = asked.choice(fields, "goal", GOALS), asked.text(fields, "at")
    resets = plan_reset(client, group, [topic] if topic else [], Goal(kind=kind, value=_value(kind, at, fields)))
    if "execute" not in fields:
        return Plan(group=group, topic=topic, goal=kind, at=at, resets=resets)
    commit_offsets(client, group, {reset.partition: reset.new for reset in resets})
    return _group(group, "reset")


def _value(kind: str, at: str, fields: Mapping[str, str]) -> int:
    if kind == "to_datetime":
        return parse_time(at)
    if kind in ("to_offset", "shift_by"):
        if not at:
            raise HTTPException(400, "this goal needs a number")
        return asked.number(fields, "at", 0)
    return 0


def _delete(client: Client, fields: Mapping[str, str]) -> str:
    delete_group(client, asked.text(fields, "id"))
    return "/groups?done=deleted"


def _remove(client: Client, fields: Mapping[str, str]) -> str:
    group = existing_group(client, asked.text(fields, "id"))
    for member in chosen_members(group, [asked.text(fields, "member")], []):
        remove_member(client, group.group, member)
    return _group(group.group, "removed")


def _group(id: str, done: str) -> str:
    return f"/group?{urlencode({'id': id, 'done': done})}"


CHANGES: Final[tuple[tuple[str, Change], ...]] = (
    ("/group/reset", _reset),
    ("/group/delete", _delete),
    ("/group/remove", _remove),
)
"""Path of each change."""
