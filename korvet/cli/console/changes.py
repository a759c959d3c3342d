"""The changes that the console may make: to offsets, groups, members and transactions.

A page first asks for confirmation; the field ``execute`` confirms. Each change is one request that may be repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlencode

from starlette.exceptions import HTTPException

from korvet.cli.console import form_fields
from korvet.cli.console.sources import Sources
from korvet.cli.kafka.client import Client
from korvet.cli.kafka.endings import abort_open, fence
from korvet.cli.kafka.groups import chosen_members, delete_group, deletion_hindrance, existing_group, remove_member
from korvet.cli.kafka.offsets import TopicPartition
from korvet.cli.kafka.reset import Goal, Reset, execute_reset, parse_time, plan_reset, reset_hindrance
from korvet.cli.redis.repair import Damage, corrupt_entry, remove_entry
from korvet.store.keys import Namespace

GOALS: Final = {
    "to_earliest": "earliest",
    "to_latest": "latest",
    "to_offset": "offset",
    "to_datetime": "time",
    "shift_by": "shift by",
}
"""The goals of a reset, and their names in the form."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The effect of a reset, for a page that asks for confirmation. ``hindrance`` says why it cannot be done now."""

    group: str
    topic: str
    goal: str
    at: str
    resets: list[Reset]
    hindrance: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """The effect of a change, for a page that asks for confirmation. ``hindrance`` says why it cannot be done now.

    ``fields`` are the form's, which sends them to ``path``; ``back`` is the page that the visitor came from.
    """

    title: str
    effect: str
    button: str
    path: str
    fields: Mapping[str, str]
    back: str
    hindrance: str | None = None


Change = Callable[[Client, Mapping[str, str], Sources], Plan | Question | str]
DONE: Final = {
    "reset": "The offsets are reset.",
    "deleted": "The group is deleted.",
    "removed": "The member is removed. It joins again if its client goes on.",
    "ended": "The transaction is aborted, and its producer is fenced.",
    "repaired": "The entry is removed.",
    "aborted": "The transaction is aborted in this partition.",
}
"""A page's message after a change."""


def _reset(client: Client, fields: Mapping[str, str], _sources: Sources) -> Plan | str:
    group, topic = form_fields.text(fields, "id"), form_fields.text(fields, "topic")
    kind, at = form_fields.choice(fields, "goal", tuple(GOALS)), form_fields.text(fields, "at")
    resets = plan_reset(client, group, [topic] if topic else [], Goal(kind=kind, value=_value(kind, at, fields)))
    if "execute" not in fields:
        hindrance = reset_hindrance(client, group)
        return Plan(group=group, topic=topic, goal=kind, at=at, resets=resets, hindrance=hindrance)
    execute_reset(client, group, resets)
    return _at("/group", id=group, done="reset")


def _value(kind: str, at: str, fields: Mapping[str, str]) -> int:
    if kind == "to_datetime":
        return parse_time(at)
    if kind in ("to_offset", "shift_by"):
        if not at:
            raise HTTPException(400, "this goal needs a number")
        return form_fields.number(fields, "at", 0)
    return 0


def _delete(client: Client, fields: Mapping[str, str], _sources: Sources) -> Question | str:
    id = form_fields.text(fields, "id")
    if "execute" not in fields:
        return Question(
            title=f"Delete group {id}",
            effect="Its offsets are lost. Consumers that join it again begin where auto.offset.reset says.",
            button=f"Delete {id} and its offsets",
            path="/group/delete",
            fields={"id": id},
            back=_at("/group", id=id),
            hindrance=deletion_hindrance(client, id),
        )
    delete_group(client, id)
    return "/groups?done=deleted"


def _remove(client: Client, fields: Mapping[str, str], _sources: Sources) -> Question | str:
    id, member = form_fields.text(fields, "id"), form_fields.text(fields, "member")
    if "execute" not in fields:
        return Question(
            title=f"Remove a member of group {id}",
            effect=f"Others get the partitions of member {member}. It joins again if its client goes on.",
            button="Remove this member",
            path="/group/remove",
            fields={"id": id, "member": member},
            back=_at("/group", id=id),
        )
    group = existing_group(client, id)
    for chosen in chosen_members(group, [member], []):
        remove_member(client, group.group, chosen)
    return _at("/group", id=id, done="removed")


def _end(client: Client, fields: Mapping[str, str], _sources: Sources) -> Question | str:
    id = form_fields.text(fields, "id")
    if "execute" not in fields:
        return Question(
            title=f"Abort the transaction of {id}",
            effect="Its records are never read by consumers that read committed ones, and its offsets are not "
            "committed. The producer that began it is fenced: it cannot go on.",
            button="Abort the transaction and fence its producer",
            path="/transaction/end",
            fields={"id": id},
            back=_at("/transaction", id=id),
        )
    fence(client, id)
    return _at("/transaction", id=id, done="ended")


def _abort(client: Client, fields: Mapping[str, str], _sources: Sources) -> Question | str:
    partition = TopicPartition(form_fields.text(fields, "name"), form_fields.number(fields, "partition", 0))
    start = form_fields.number(fields, "start", 0)
    shown = {"name": partition.topic, "partition": str(partition.partition)}
    if "execute" not in fields:
        return Question(
            title=f"Abort the transaction in {partition} that is open since offset {start}",
            effect="A marker ends it in this partition alone, whatever its coordinator knows. Do so for one that "
            "hangs, as its producer and transactional id are gone. Else abort it at its transactional id's page.",
            button="Write the marker",
            path="/partition/abort",
            fields={**shown, "start": str(start)},
            back=_at("/partition", **shown),
        )
    abort_open(client, partition, start)
    return _at("/partition", **shown, done="aborted")


def _repair(client: Client, fields: Mapping[str, str], sources: Sources) -> Question | str:
    partition = TopicPartition(form_fields.text(fields, "name"), form_fields.number(fields, "partition", 0))
    damage, namespace = Damage(partition, form_fields.number(fields, "offset", 0)), Namespace(sources.namespace)
    shown = {"name": partition.topic, "partition": str(partition.partition)}
    if "execute" not in fields:
        entry = corrupt_entry(client, sources.redis, namespace, damage)
        return Question(
            title=f"Repair {partition} at offset {damage.offset}",
            effect=f"Entry {entry} is removed from the log in Redis, with whatever it held. Consumers go on after it.",
            button=f"Remove entry {entry}",
            path="/records/repair",
            fields={**shown, "offset": str(damage.offset), "entry": entry},
            back=_at("/records", **shown),
        )
    remove_entry(client, sources.redis, namespace, damage, form_fields.text(fields, "entry"))
    return _at("/records", **shown, start="offset", at=str(damage.offset), done="repaired")


def _at(path: str, **fields: str) -> str:
    return f"{path}?{urlencode(fields)}"


RESET: Final = "/group/reset"
"""The change with a form to fill in."""
CHANGES: Final[tuple[tuple[str, Change], ...]] = (
    (RESET, _reset),
    ("/group/delete", _delete),
    ("/group/remove", _remove),
    ("/transaction/end", _end),
    ("/partition/abort", _abort),
    ("/records/repair", _repair),
)
"""Path of each change."""
FOR_OPERATORS: Final = frozenset({"/records/repair"})
"""The changes that no rule of the cluster protects."""
