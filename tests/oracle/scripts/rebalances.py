"""Classic groups of several members, each on a connection of its own: parked members, and their answers.

Source: GroupMetadataManager, ClassicGroup.
"""

from typing import Any, Final

from tests.oracle.script import Receive, Script, Step
from tests.oracle.scripts.membership import NOBODY, RANGE, ROUND_ROBIN, SUBSCRIPTION, in_state, join_body, sync_body
from tests.oracle.values import Packed

CONNECTIONS: Final = {"m": "a", "n": "b", "o": "c", "p": "d"}
"""The connection of each member."""
SHORT_MS: Final = 5000
"""A timeout that ends within a script, and leaves time for its other steps."""
STICKY: Final = {"name": "sticky", "metadata": SUBSCRIPTION}
OTHER_RANGE: Final = {"name": "range", "metadata": Packed(pieces=(b"\0\0\0\0\0\1", "$u", b"\xff\xff\xff\xff"))}


def join(
    who: str, *errors: str, later: bool = False, save: str = "generation", checked: bool = True,
    version: int | None = 9, **more: Any,
) -> Step:  # fmt: skip
    """A join of the member `$who`; saves the generation if the script waits for the answer."""
    saved = {save: "generation_id"} if save and not later and not errors else {}
    return Step(
        "join_group",
        version=version,
        on=CONNECTIONS[who[0]],
        body=join_body(f"${who}", **more),
        later=later,
        save=saved,
        errors=errors if checked else None,
    )


def named(who: str, **more: Any) -> Step:
    """The first join of a new member, whose answer holds its id; the id is saved as `who`."""
    return Step(
        "join_group",
        version=9,
        on=CONNECTIONS[who[0]],
        body=join_body(**more),
        save={who: "member_id"},
        errors=("MEMBER_ID_REQUIRED",),
    )


def joining(*members: str, **more: Any) -> tuple[Step, ...]:
    """Joins of new members, which are parked."""
    ids = (named(who, **more) for who in members)
    return (*ids, *(join(who, later=True, **more) for who in members))


def received(who: str, *errors: str, save: str = "") -> Receive:
    """The answer to a parked call."""
    return Receive(on=CONNECTIONS[who[0]], save={save: "generation_id"} if save else {}, errors=errors)


def beat(who: str, *errors: str, generation: Any = "$generation", until: str = "", **more: Any) -> Step:
    """A heartbeat, or heartbeats until an answer has the error `until`."""
    body = {"group_id": "$g", "generation_id": generation, "member_id": f"${who}", **more}
    told = ("error_code", until) if until else None
    return Step(
        "heartbeat",
        version=4,
        on=CONNECTIONS[who[0]],
        body=body,
        until=told,
        errors=(until,) if until and until != "NONE" else errors,
    )


def sync(
    who: str, *errors: str, assigned: tuple[str, ...] = (), later: bool = False, generation: Any = "$generation",
    **more: Any,
) -> Step:  # fmt: skip
    """A SyncGroup, by the leader with the members that it assigns to."""
    body = sync_body(f"${who}", generation, tuple(f"${one}" for one in assigned), **more)
    return Step("sync_group", version=5, on=CONNECTIONS[who[0]], body=body, later=later, errors=errors)


def leave(*members: str, on: str = "x", errors: tuple[str, ...] = (), version: int | None = 5) -> Step:
    """A LeaveGroup of members by their ids."""
    rows = [{"member_id": f"${who}"} for who in members]
    body = {"group_id": "$g", "member_id": f"${members[0]}", "members": rows}
    return Step("leave_group", version=version, on=on, body=body, errors=errors)


def gathered(*members: str, **more: Any) -> tuple[Step | Receive, ...]:
    """A group whose members have all joined and must sync next; the first member leads."""
    first, *others = members
    steps: tuple[Step | Receive, ...] = (named(first, **more), join(first, **more))
    if others:
        steps = (
            *steps,
            sync(first, assigned=(first,)),
            *joining(*others, **more),
            beat(first, until="REBALANCE_IN_PROGRESS"),
            join(first, **more),
            *(received(who) for who in others),
        )
    return steps


def settled(*members: str, **more: Any) -> tuple[Step | Receive, ...]:
    """A Stable group; the first member leads."""
    first, *others = members
    return (
        *gathered(*members, **more),
        *(sync(who, later=True) for who in others),
        sync(first, assigned=members),
        *(received(who) for who in others),
    )


def script(name: str, *steps: Step | Receive, api: str = "join_group", versions: tuple[int, ...] = (9,)) -> Script:
    return Script(f"rebalance {name}", api, *steps, versions=versions)


ORDER: Final = (
    script("of three members", *settled("m"), *joining("n", "o", protocols=(ROUND_ROBIN, RANGE)),
           beat("m", until="REBALANCE_IN_PROGRESS"), sync("m", "REBALANCE_IN_PROGRESS"),
           join("m", protocols=(RANGE, ROUND_ROBIN)), received("n"), received("o"),
           sync("n", later=True, protocol_name="roundrobin"), sync("o", later=True, protocol_name="roundrobin"),
           beat("m"), sync("m", assigned=("m", "n", "o"), protocol_name="roundrobin"), received("n"), received("o"),
           beat("o"), in_state("Stable")),
    script("by a follower that leaves", *settled("m", "n"), leave("n"), beat("m", "REBALANCE_IN_PROGRESS"),
           beat("n", "UNKNOWN_MEMBER_ID"), join("m"), sync("m", assigned=("m",))),
    script("by a leader that leaves", *settled("m", "n"), leave("m"), beat("n", "REBALANCE_IN_PROGRESS"), join("n"),
           sync("n", assigned=("n",)), join("m", "UNKNOWN_MEMBER_ID")),
    script("by a leader that leaves before it syncs", *gathered("m", "n"), sync("n", later=True), leave("m"),
           received("n", "REBALANCE_IN_PROGRESS"), join("n")),
    script("by a follower that leaves while it waits", *gathered("m", "n"), sync("n", later=True), leave("n"),
           sync("m", "REBALANCE_IN_PROGRESS")),
    script("by a third member before the sync", *gathered("m", "n"), sync("n", later=True), *joining("o"),
           received("n", "REBALANCE_IN_PROGRESS"), sync("m", "REBALANCE_IN_PROGRESS", assigned=("m", "n")),
           beat("m", "REBALANCE_IN_PROGRESS"), join("n", later=True), join("m"), received("n"), received("o"),
           in_state("CompletingRebalance")),
    script("by a member that leaves while its join waits", *settled("m"), *joining("n"),
           beat("m", until="REBALANCE_IN_PROGRESS"), leave("n"), received("n", "UNKNOWN_MEMBER_ID"), join("m")),
    script("that the last missing member ends by leaving", *settled("m", "n"),
           join("n", later=True, protocols=(OTHER_RANGE,)), beat("m", until="REBALANCE_IN_PROGRESS"), leave("m"),
           received("n", save="generation"), sync("n", assigned=("n",))),
    script("into an empty group", *settled("m", "n"), leave("n", "m"), in_state("Empty"),
           beat("m", "UNKNOWN_MEMBER_ID"), sync("m", "UNKNOWN_MEMBER_ID"), join("m", "UNKNOWN_MEMBER_ID"),
           *settled("o", "p", protocol_type="connect")[:2]),
    script("that an id which was handed out holds up", *settled("m"), named("n"), join("m", later=True), leave("n"),
           received("m")),
    script("by an id that leaves before it joined", *settled("m", "n"), named("o"), leave("o"),
           beat("m", "REBALANCE_IN_PROGRESS")),
)  # fmt: skip

AGAIN: Final = (
    script("joins again unchanged before the sync", *gathered("m", "n"), join("m"), join("n"), join("n", save=""),
           sync("m", assigned=("m", "n"))),
    script("joins again changed before the sync", *gathered("m", "n"), join("n", later=True, protocols=(OTHER_RANGE,)),
           beat("m", until="REBALANCE_IN_PROGRESS"), join("m"), received("n")),
    script("joins again when stable", *settled("m", "n"), join("n"), sync("n"),
           join("n", later=True, protocols=(OTHER_RANGE,)), beat("m", until="REBALANCE_IN_PROGRESS"), join("m"),
           received("n")),
    script("leader joins again when stable", *settled("m", "n"), join("m", later=True),
           beat("n", until="REBALANCE_IN_PROGRESS"), join("n", save="generation"), received("m"),
           sync("n", "ILLEGAL_GENERATION", generation=1), beat("n", "ILLEGAL_GENERATION", generation=1)),
)  # fmt: skip

PROTOCOLS: Final = (
    script(
        "protocols that not all support",
        *settled("m", "n", protocols=(RANGE, ROUND_ROBIN)),
        Step("join_group", version=9, on="c", body=join_body(protocols=(STICKY,)),
             errors=("INCONSISTENT_GROUP_PROTOCOL",)),
        Step("join_group", version=9, on="c", body=join_body(protocols=(RANGE,), protocol_type="connect"),
             errors=("INCONSISTENT_GROUP_PROTOCOL",)),
        join("m", "INCONSISTENT_GROUP_PROTOCOL", protocols=(STICKY,)),
        join("n", "INCONSISTENT_GROUP_PROTOCOL", protocols=(RANGE,), protocol_type="connect"),
        *joining("o", protocols=(STICKY, ROUND_ROBIN)),
        beat("m", until="REBALANCE_IN_PROGRESS"),
        join("n", "INCONSISTENT_GROUP_PROTOCOL", protocols=(RANGE,)),
        join("n", later=True, protocols=(RANGE, ROUND_ROBIN)),
        join("m", protocols=(RANGE, ROUND_ROBIN)),
        received("n"),
        received("o"),
    ),
    script("protocol of the only member cannot change at once", *settled("m"),
           join("m", "INCONSISTENT_GROUP_PROTOCOL", protocols=(ROUND_ROBIN,)),
           join("m", protocols=(ROUND_ROBIN, RANGE)), join("m", protocols=(ROUND_ROBIN,))),
    script(
        "more members than the group may have",
        *settled("m", "n", rebalance_timeout=SHORT_MS),
        *joining("o", rebalance_timeout=SHORT_MS),
        beat("m", until="REBALANCE_IN_PROGRESS"),
        named("p"),
        join("m", later=True, rebalance_timeout=SHORT_MS),
        join("n", later=True, rebalance_timeout=SHORT_MS),
        # The other members' parked joins are on other connections and may be answered later.
        Step("join_group", version=9, on="d", body=join_body(), until=("error_code", "GROUP_MAX_SIZE_REACHED"),
             errors=("GROUP_MAX_SIZE_REACHED",)),
        join("p", "GROUP_MAX_SIZE_REACHED"),
        received("m", save="generation"),
        received("n"),
        received("o"),
        Step("join_group", version=9, on="d", body=join_body(), errors=("GROUP_MAX_SIZE_REACHED",)),
        join("p", "GROUP_MAX_SIZE_REACHED"),
        join("n", save=""),
    ),
)  # fmt: skip

REFUSED: Final = (
    script(
        "refuses strangers in every state",
        *(
            step
            for state in (gathered("m", "n"), (sync("m", assigned=("m", "n")),), (join("m", later=True),))
            for step in (
                *state,
                Step("heartbeat", version=4, on="x",
                     body={"group_id": "$g", "generation_id": "$generation", "member_id": NOBODY},
                     errors=("UNKNOWN_MEMBER_ID",)),
                Step("sync_group", version=5, on="x", body=sync_body(NOBODY), errors=("UNKNOWN_MEMBER_ID",)),
                Step("join_group", version=9, on="x", body=join_body(NOBODY), errors=("UNKNOWN_MEMBER_ID",)),
                beat("n", "ILLEGAL_GENERATION", generation=7),
                sync("n", "ILLEGAL_GENERATION", generation=7),
                sync("n", "INCONSISTENT_GROUP_PROTOCOL", protocol_name="sticky"),
            )
        ),
    ),
)  # fmt: skip

SCRIPTS: Final = (*ORDER, *AGAIN, *PROTOCOLS, *REFUSED)
