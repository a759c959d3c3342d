"""Static members: restarted, fenced, kept over a rebalance, removed by their instance id.

Source: KIP-345, KIP-814, GroupMetadataManager.updateStaticMemberThenRebalanceOrCompleteJoin,
ClassicGroup.validateMember
"""

from typing import Any, Final

from tests.oracle.script import Receive, Script, Step
from tests.oracle.scripts.membership import RANGE, ROUND_ROBIN, in_state, join_body
from tests.oracle.scripts.rebalances import (
    CONNECTIONS,
    SHORT_MS,
    beat,
    join,
    joining,
    received,
    settled,
    sync,
)
from tests.oracle.scripts.steps import new_topic
from tests.oracle.values import Packed

INSTANCE: Final[dict[str, Any]] = {"group_instance_id": "i"}
OTHER: Final[dict[str, Any]] = {"group_instance_id": "j"}
USER_DATA: Final = {"name": "range", "metadata": Packed(pieces=(b"\0\0\0\0\0\1", "$t", b"\0\0\0\1x"))}


def started(
    who: str, *, instance: str = "i", on: str = "", version: int | None = 9, later: bool = False, **more: Any
) -> Step:
    """Start a static member by its instance id alone; unless the join is parked, its id is saved as `who`."""
    return Step(
        "join_group",
        version=version,
        on=on or CONNECTIONS[who[0]],
        body=join_body(**{"group_instance_id": instance, **more}),
        later=later,
        save={} if later else {who: "member_id", "generation": "generation_id"},
    )


def leave(*errors: str, member: str = "", instance: str | None = "i", version: int | None = 5) -> Step:
    """A LeaveGroup of one static member."""
    row = {"member_id": member, "group_instance_id": instance}
    return Step("leave_group", version=version, on="x", body={"group_id": "$g", "members": [row]}, errors=errors)


def commit(who: str, *errors: str, instance: str | None = "i", generation: Any = "$generation") -> Step:
    """An OffsetCommit of a member."""
    row = {"partition_index": 0, "committed_offset": 3, "committed_metadata": ""}
    body = {
        "group_id": "$g", "member_id": f"${who}", "group_instance_id": instance,
        "generation_id_or_member_epoch": generation, "topics": [{"name": "$t", "partitions": [row]}],
    }  # fmt: skip
    return Step("offset_commit", version=8, on=CONNECTIONS[who[0]], body=body, errors=errors)


def script(name: str, *steps: Step | Receive, api: str = "join_group", versions: tuple[int, ...] = (9,)) -> Script:
    return Script(f"static {name}", api, *steps, versions=versions)


LEADER: Final = (started("m"), sync("m", assigned=("m",), **INSTANCE))
"""A Stable group of one static member, `m`."""
FOLLOWER: Final = (
    *settled("m"),
    started("n", later=True, on="b"),
    beat("m", until="REBALANCE_IN_PROGRESS"),
    join("m"),
    Receive(on="b", save={"n": "member_id"}),
    sync("n", later=True, **INSTANCE),
    sync("m", assigned=("m", "n")),
    received("n"),
)
"""A Stable group of a dynamic leader `m` and a static member `n`."""

RESTART: Final = (
    script("leader joins a new group", started("m", version=None), versions=(5, 6, 7, 8, 9)),
    # From v9 on the answer names the members and says not to assign; before v9 it names the former id as leader.
    script("leader starts again", *LEADER, started("m2", version=None), beat("m2", **INSTANCE), sync("m2", **INSTANCE),
           in_state("Stable"), versions=(5, 6, 7, 8, 9)),
    script("follower starts again", *FOLLOWER, started("n2", version=None), beat("m"), sync("n2", **INSTANCE),
           beat("n2", **INSTANCE), versions=(5, 9)),
    script("follower starts again with other metadata", *FOLLOWER, started("n2", protocols=(USER_DATA,)), beat("m"),
           sync("n2", **INSTANCE)),
    script("member starts again with protocols that change the choice", started("m", protocols=(RANGE, ROUND_ROBIN)),
           sync("m", assigned=("m",), **INSTANCE), started("m2", protocols=(ROUND_ROBIN, RANGE)),
           beat("m2", **INSTANCE), beat("m2", "ILLEGAL_GENERATION", generation=1, **INSTANCE)),
    script("member starts again before the sync", *FOLLOWER[:-3], started("n2", later=True, on="b"),
           beat("m", until="REBALANCE_IN_PROGRESS"), join("m"), Receive(on="b", save={"n2": "member_id"}),
           sync("n2", later=True, **INSTANCE), sync("m", assigned=("m", "n2")), received("n2")),
    script("member starts again while its join waits", *FOLLOWER[:4], beat("m", until="REBALANCE_IN_PROGRESS"),
           started("n2", later=True, on="c"), Receive(on="b", errors=("FENCED_INSTANCE_ID",), ignore=("member_id",)),
           join("m"), Receive(on="c", save={"n": "member_id"})),
    script("member starts again while its sync waits", *FOLLOWER[:-2], started("n2", later=True, on="c"),
           received("n", "FENCED_INSTANCE_ID"), beat("m", until="REBALANCE_IN_PROGRESS"), join("m"),
           Receive(on="c", save={"n2": "member_id"})),
)  # fmt: skip

FENCED: Final = (
    script("member's former self is fenced", *new_topic(), *LEADER, started("m2"),
           join("m", "FENCED_INSTANCE_ID", **INSTANCE), sync("m", "FENCED_INSTANCE_ID", **INSTANCE),
           beat("m", "FENCED_INSTANCE_ID", **INSTANCE), commit("m", "FENCED_INSTANCE_ID"),
           leave("FENCED_INSTANCE_ID", member="$m"), beat("m", "FENCED_INSTANCE_ID", generation=7, **INSTANCE),
           sync("m", "FENCED_INSTANCE_ID", generation=7, **INSTANCE), commit("m", "FENCED_INSTANCE_ID", generation=7),
           join("m", "UNKNOWN_MEMBER_ID"), sync("m", "UNKNOWN_MEMBER_ID"), beat("m", "UNKNOWN_MEMBER_ID"),
           commit("m", "UNKNOWN_MEMBER_ID", instance=None), leave("UNKNOWN_MEMBER_ID", member="$m", instance=None),
           commit("m2"), commit("m2", instance=None)),
    script("instance id that nobody has", *new_topic(), *LEADER, join("m", "UNKNOWN_MEMBER_ID", **OTHER),
           sync("m", "UNKNOWN_MEMBER_ID", **OTHER), beat("m", "UNKNOWN_MEMBER_ID", **OTHER),
           commit("m", "UNKNOWN_MEMBER_ID", instance="j"), leave("UNKNOWN_MEMBER_ID", member="$m", instance="j"),
           leave("UNKNOWN_MEMBER_ID", instance="j"), leave("UNKNOWN_MEMBER_ID", instance=None), beat("m", **INSTANCE),
           join("m", save="", **INSTANCE)),
)  # fmt: skip

LEAVE: Final = (
    script("leave by instance id", *LEADER, leave(version=None), in_state("Empty"), api="leave_group", versions=(3, 5)),
    script(
        "leave of several at once",
        *FOLLOWER,
        Step(
            "leave_group",
            on="x",
            body={
                "group_id": "$g",
                "members": [
                    {"member_id": "$m", "group_instance_id": "i"},
                    {"member_id": "$n"},
                    {"member_id": "$n"},
                    {"member_id": "", "group_instance_id": "i"},
                    {"member_id": "$m"},
                ],
            },
            errors=("FENCED_INSTANCE_ID", "UNKNOWN_MEMBER_ID"),
        ),
        in_state("Empty"),
        api="leave_group",
        versions=(3, 4, 5),
    ),
)

TIME: Final = (
    script("member is kept though it does not join in time", *settled("m", rebalance_timeout=SHORT_MS),
           started("n", later=True, on="b", rebalance_timeout=SHORT_MS), beat("m", until="REBALANCE_IN_PROGRESS"),
           join("m", rebalance_timeout=SHORT_MS), Receive(on="b", save={"n": "member_id"}),
           sync("n", later=True, **INSTANCE), sync("m", assigned=("m", "n")), received("n"),
           join("m", rebalance_timeout=SHORT_MS), beat("n", **INSTANCE), in_state("CompletingRebalance")),
    script("member is given up at the end of its session", started("m", session_timeout=SHORT_MS),
           sync("m", assigned=("m",), **INSTANCE), in_state("Empty"), beat("m", "UNKNOWN_MEMBER_ID", **INSTANCE),
           started("m2")),
    script("member and dynamic ones rebalance", *LEADER, *joining("n"),
           beat("m", until="REBALANCE_IN_PROGRESS", **INSTANCE), join("m", **INSTANCE), received("n")),
)  # fmt: skip

SCRIPTS: Final = (*RESTART, *FENCED, *LEAVE, *TIME)
