"""Commits, descriptions and administrators' changes in every state of a group.

Source: ClassicGroup.validateOffsetCommit, validateOffsetDelete, validateDeleteGroup, asDescribedGroup
"""

from dataclasses import replace
from typing import Any, Final

from tests.oracle.script import Receive, Script, Step
from tests.oracle.scripts import groups
from tests.oracle.scripts.membership import NOBODY, in_state, join_body
from tests.oracle.scripts.rebalances import beat, gathered, join, joining, leave, received, sync
from tests.oracle.scripts.steps import new_topic


def commit(offset: int, *errors: str, member: str = "", generation: Any = -1, version: int | None = None) -> Step:
    """An OffsetCommit on a connection of its own."""
    row = {"partition_index": 0, "committed_offset": offset, "committed_metadata": ""}
    body = {
        "group_id": "$g", "member_id": member, "generation_id_or_member_epoch": generation, "retention_time": -1,
        "topics": [{"name": "$t", "topic_id": "$t_id", "partitions": [row]}],
    }  # fmt: skip
    return Step("offset_commit", version=version, on="x", body=body, errors=errors)


READ: Final = replace(groups.READ, on="x")

COMMITS: Final = (
    commit(1, "UNKNOWN_MEMBER_ID"),
    commit(2, "UNKNOWN_MEMBER_ID", member=NOBODY),
    commit(3, "UNKNOWN_MEMBER_ID", generation="$generation"),
    commit(4, "UNKNOWN_MEMBER_ID", member=NOBODY, generation="$generation"),
    commit(5, "ILLEGAL_GENERATION", member="$m"),
    commit(6, "ILLEGAL_GENERATION", member="$m", generation=7),
    commit(7, "ILLEGAL_GENERATION", member="$m", generation=0),
)
"""Commits that a group with members answers alike in any state."""

EMPTIED: Final = (
    commit(20),
    READ,
    commit(21, member=NOBODY),
    READ,
    commit(22, "UNKNOWN_MEMBER_ID", member=NOBODY, generation=1),
    commit(23, "UNKNOWN_MEMBER_ID", member="$m", generation="$generation"),
    READ,
)

BY_STATE: Final = Script(
    "commit in every state",
    "offset_commit",
    *new_topic(),
    *gathered("m", "n"),
    *COMMITS,
    commit(10, "REBALANCE_IN_PROGRESS", member="$m", generation="$generation"),
    commit(11, "REBALANCE_IN_PROGRESS", member="$n", generation="$generation"),
    READ,
    sync("m", assigned=("m", "n")),
    sync("n"),
    *COMMITS,
    commit(12, member="$m", generation="$generation"),
    READ,
    commit(13, member="$n", generation="$generation"),
    READ,
    join("m", later=True),
    beat("n", until="REBALANCE_IN_PROGRESS"),
    *COMMITS,
    commit(14, member="$n", generation="$generation"),
    READ,
    join("n"),
    received("m"),
    commit(15, "ILLEGAL_GENERATION", member="$n", generation=2),
    leave("m", "n"),
    in_state("Empty", on="x"),
    *EMPTIED,
    versions=tuple(range(2, 11)),
)


def seen() -> tuple[Step, ...]:
    """The group as administrators see it."""
    described = Step("describe_groups", version=6, on="x", body={"groups": ["$g"]}, errors=None)
    listed = Step("list_groups", version=5, on="x", body={}, errors=None)
    return described, listed


def administered(state: str) -> tuple[Step, ...]:
    """An administrator's steps in a state of the group, most of which a group with members refuses."""
    forgotten = {"group_id": "$g", "topics": [{"name": "$t", "partitions": [{"partition_index": 0}]}]}
    other = {"group_id": "$g", "topics": [{"name": "$u", "partitions": [{"partition_index": 0}]}]}
    return (
        in_state(state, on="x"),
        *seen(),
        Step("offset_delete", on="x", body=forgotten, errors=("GROUP_SUBSCRIBED_TO_TOPIC",)),
        Step("offset_delete", on="x", body=other),
        Step("delete_groups", version=2, on="x", body={"groups_names": ["$g"]}, errors=("NON_EMPTY_GROUP",)),
    )


def emptied() -> tuple[Step, ...]:
    forgotten = {"group_id": "$g", "topics": [{"name": "$t", "partitions": [{"partition_index": 0}]}]}
    return (
        in_state("Empty", on="x"),
        *seen(),
        Step("offset_delete", on="x", body=forgotten),
        Step("delete_groups", version=2, on="x", body={"groups_names": ["$g"]}),
        Step("delete_groups", version=2, on="x", body={"groups_names": ["$g"]}, errors=("GROUP_ID_NOT_FOUND",)),
        Step("offset_delete", on="x", body=forgotten, errors=("GROUP_ID_NOT_FOUND",)),
        *seen(),
    )


def admin_script(name: str, *steps: Step | Receive) -> Script:
    return Script(f"administer {name}", "describe_groups", *steps, versions=(6,))


ADMINISTERED: Final = (
    admin_script("a group in every state", *new_topic(), *new_topic("u"), *gathered("m", "n"),
                 *administered("CompletingRebalance"), sync("m", assigned=("m", "n")), sync("n"),
                 *administered("Stable"), join("m", later=True), beat("n", until="REBALANCE_IN_PROGRESS"),
                 *administered("PreparingRebalance"), join("n"), received("m"), *administered("CompletingRebalance"),
                 leave("m", "n"), *emptied(), join("m", "UNKNOWN_MEMBER_ID")),
    admin_script(
        "a group that is no consumers'",
        *new_topic(),
        *gathered("m", protocol_type="connect"),
        sync("m", assigned=("m",), protocol_type="connect"),
        in_state("Stable"),
        *seen(),
        Step("offset_delete", on="x",
             body={"group_id": "$g", "topics": [{"name": "$t", "partitions": [{"partition_index": 0}]}]},
             errors=("NON_EMPTY_GROUP",)),
        leave("m"),
        *emptied(),
    ),
    admin_script("a group that waits for a member", *new_topic(), *gathered("m"), *joining("n"),
                 in_state("PreparingRebalance", on="x"), *seen(), leave("m"), received("n", save="generation"),
                 sync("n", assigned=("n",)), in_state("Stable"), *seen()),
)  # fmt: skip

REFUSED: Final = admin_script(
    "a group that its first member could not join",
    Step("join_group", version=9, body=join_body(protocols=()), errors=("INCONSISTENT_GROUP_PROTOCOL",)),
    *seen(),
)

SCRIPTS: Final = (BY_STATE, REFUSED, *ADMINISTERED)
