"""Both protocols in one group: an upgrade by its members, classic members in a consumer group, and the way back.

Source: GroupMetadataManager.convertToConsumerGroup, classicGroupJoinToConsumerGroup, convertToClassicGroup.
"""

from dataclasses import replace
from typing import Any, Final

from tests.oracle.script import Receive, Script, Step
from tests.oracle.scripts.consumer_steps import beat, commit, delete, described, known_topic, leave, owned, seen
from tests.oracle.scripts.consumer_steps import join as consume
from tests.oracle.scripts.membership import NOBODY, in_state, join_body, joined, sync_body
from tests.oracle.values import Packed

GENERATION: Final = "$generation"
CONNECT: Final[dict[str, Any]] = {"protocol_type": "connect"}
STATIC: Final[dict[str, Any]] = {"group_instance_id": "i"}
WHOLE_TOPIC: Final = Packed(pieces=(b"\0\0\0\0\0\1", "$t", b"\0\0\0\2\0\0\0\0\0\0\0\1\xff\xff\xff\xff"))


def named(who: str, *errors: str, **more: Any) -> Step:
    """The first JoinGroup of a new classic member, whose answer holds its id."""
    return Step(
        "join_group",
        version=9,
        on="b",
        body=join_body(**more),
        save={} if errors else {who: "member_id"},
        errors=errors or ("MEMBER_ID_REQUIRED",),
    )


def rejoin(who: str, *errors: str, on: str = "b", save: str = "", **more: Any) -> Step:
    """A JoinGroup of a classic member; saves the generation, and the member id if `save` names it."""
    saved = {} if errors else {"generation": "generation_id"}
    if save:
        saved[save] = "member_id"
    return Step("join_group", version=9, on=on, body=join_body(who, **more), save=saved, errors=errors)


def sync(who: str, *errors: str, assigned: tuple[str, ...] = (), on: str = "b", **more: Any) -> Step:
    return Step("sync_group", version=5, on=on, body=sync_body(who, assigned=assigned, **more), errors=errors)


def heart(who: str, *errors: str, generation: Any = GENERATION, until: str = "", **more: Any) -> Step:
    """A Heartbeat of a classic member, or several until an answer has an error."""
    body = {"group_id": "$g", "generation_id": generation, "member_id": who, **more}
    reached = ("error_code", until) if until else None
    return Step("heartbeat", version=4, on="b", body=body, until=reached, errors=(until,) if until else errors)


def left(who: str, *errors: str) -> Step:
    row = {"member_id": who, "group_instance_id": None}
    return Step("leave_group", version=5, on="b", body={"group_id": "$g", "members": [row]}, errors=errors)


def owning(*partitions: int) -> dict[str, Any]:
    """A subscription of version 1 to $t by a member that owns these partitions."""
    number = len(partitions).to_bytes(4, "big")
    indexes = b"".join(partition.to_bytes(4, "big") for partition in partitions)
    head = (b"\0\1\0\0\0\1", "$t", b"\xff\xff\xff\xff")
    had = (b"\0\0\0\1", "$t", number + indexes) if partitions else (b"\0\0\0\0",)
    return {"protocols": ({"name": "range", "metadata": Packed(pieces=(*head, *had))},)}


def script(name: str, *steps: Step | Receive, partitions: int = 2) -> Script:
    """A script that begins with the topic `$t`."""
    return Script(f"migration {name}", "consumer_group_heartbeat", *known_topic(partitions), *steps, versions=(1,))


UPGRADED: Final = (
    *joined(),
    consume("n"),
    heart("$m", until="REBALANCE_IN_PROGRESS"),
    rejoin("$m"),
    sync("$m"),
    heart("$m"),
)
"""A classic group of `$m`, which has partition 0 of two; `n` has joined by the consumer protocol."""

CLASSIC_IN_CONSUMER: Final = (
    consume("m"),
    named("n"),
    rejoin("$n"),
    sync("$n"),
    heart("$n"),
    beat("m", 1, topic_partitions=owned(0, 1), save={"kept": "assignment.topic_partitions[0].partitions"}),
    beat("m", 1, topic_partitions=[{"topic_id": "$t_id", "partitions": "$kept"}]),
    heart("$n", until="REBALANCE_IN_PROGRESS"),
    rejoin("$n", **owning()),
    sync("$n"),
    heart("$n"),
)
"""A consumer group of `m` that a classic member `$n` has joined; each has one of two partitions."""

SCRIPTS: Final = (
    script("upgrade", *joined(), consume("n"), described(), *seen(), heart("$m", until="REBALANCE_IN_PROGRESS"),
           commit(3, member="$m", epoch=GENERATION, version=8), rejoin("$m"), sync("$m"), heart("$m"), beat("n", 2),
           described("Stable"), commit(4, member="$m", epoch=GENERATION, version=8),
           commit(5, member="$m", epoch=GENERATION), commit(6, "ILLEGAL_GENERATION", member="$m", epoch=9),
           commit(7, member="n", epoch=2)),
    script("upgrade and back", *UPGRADED, leave("n"), heart("$m", until="REBALANCE_IN_PROGRESS"), *seen(), rejoin("$m"),
           sync("$m", assigned=("$m",)), heart("$m"), in_state("Stable"), described()),
    script("upgrade to the end", *UPGRADED, left("$m"), beat("n", 2, until=("member_epoch", 3)), described("Stable"),
           left("$m", "UNKNOWN_MEMBER_ID"), heart("$m", "UNKNOWN_MEMBER_ID"), leave("n"), described("Empty")),
    script("classic member joins", *CLASSIC_IN_CONSUMER, described("Stable"), *seen(), sync("$n"),
           sync("$n", "ILLEGAL_GENERATION", generation_id=9),
           sync("$n", "INCONSISTENT_GROUP_PROTOCOL", protocol_name="roundrobin"),
           heart("$n", "ILLEGAL_GENERATION", generation=9), rejoin("$n", **owning(1)), beat("m", 2), left("$n"),
           beat("m", 2, until=("member_epoch", 3)), described("Stable")),
    script("last consumer member leaves", *CLASSIC_IN_CONSUMER, leave("m"), heart("$n", until="REBALANCE_IN_PROGRESS"),
           *seen(), rejoin("$n"), sync("$n", assigned=("$n",)), in_state("Stable"), consume("m"), described()),
    script("classic requests refused", consume("m"), named("n", "INCONSISTENT_GROUP_PROTOCOL", **CONNECT),
           named("n", "INCONSISTENT_GROUP_PROTOCOL", protocols=()),
           named("n", protocols=({"name": "range", "metadata": b"\0"},)),
           sync("m", "UNKNOWN_MEMBER_ID", generation_id=1), sync(NOBODY, "UNKNOWN_MEMBER_ID", generation_id=1),
           heart("m", "UNKNOWN_MEMBER_ID", generation=1), heart(NOBODY, "UNKNOWN_MEMBER_ID", generation=1),
           left(NOBODY, "UNKNOWN_MEMBER_ID"), beat("m", 1), left("m"), described("Empty")),
    script("classic member that nobody knows joins", consume("m"), rejoin(NOBODY), sync(NOBODY),
           sync(NOBODY, "ILLEGAL_GENERATION", generation_id=1), heart(NOBODY, "ILLEGAL_GENERATION", generation=1),
           left(NOBODY), beat("m", 1, until=("member_epoch", 3))),
    script("classic group that is no consumers'",
           Step("join_group", version=2, body=join_body(**CONNECT), save={"m": "member_id"}),
           consume("n", "GROUP_ID_NOT_FOUND"), described()),
    script("upgrade of a group that rebalances", *joined()[:2], consume("n", ignore=("assignment",)),
           sync("$m", "REBALANCE_IN_PROGRESS", assigned=("$m",)), rejoin("$m"),
           replace(sync("$m"), ignore=("assignment",)), heart("$m")),
    script("static member changes to the consumer protocol", rejoin("", **STATIC, save="m"),
           sync("$m", assignments=[{"member_id": "$m", "assignment": WHOLE_TOPIC}], **STATIC),
           consume("n", instance_id="i"), described("Stable"), heart("$m", "FENCED_INSTANCE_ID", **STATIC),
           heart("$m", "UNKNOWN_MEMBER_ID"), beat("n", 1)),
    script("static member changes to the classic protocol", consume("m", instance_id="i"),
           leave("m", epoch=-2, instance_id="i"), rejoin("", **STATIC, save="n"), *seen(),
           sync("$n", assigned=("$n",), **STATIC), heart("$n", **STATIC), beat("m", 1, "GROUP_ID_NOT_FOUND"),
           described()),
    script(
        "empty classic group",
        *joined(),
        commit(3, member="$m", epoch=GENERATION),
        left("$m"),
        in_state("Empty"),
        consume("n"),
        described("Stable"),
        *seen(),
        Step("offset_fetch", version=8,
             body={"groups": [{"group_id": "$g", "topics": [{"name": "$t", "partition_indexes": [0]}]}]}),
    ),
    script(
        "empty consumer group",
        consume("n"),
        commit(3, member="n", epoch=1),
        leave("n"),
        described("Empty"),
        *joined(),
        in_state("Stable"),
        *seen(),
        described(),
        Step("offset_fetch", version=8,
             body={"groups": [{"group_id": "$g", "topics": [{"name": "$t", "partition_indexes": [0]}]}]}),
        delete("NON_EMPTY_GROUP"),
    ),
)  # fmt: skip
