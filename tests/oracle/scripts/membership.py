"""JoinGroup, SyncGroup, Heartbeat, LeaveGroup of classic groups. Source: GroupMetadataManager, ClassicGroup."""

from typing import Any, Final

from tests.oracle.script import Receive, Script, Step
from tests.oracle.values import Packed

# ConsumerProtocolSubscription v0 of topic $t without user data, and an assignment of its partition 0.
SUBSCRIPTION: Final = Packed(pieces=(b"\0\0\0\0\0\1", "$t", b"\xff\xff\xff\xff"))
ASSIGNMENT: Final = Packed(pieces=(b"\0\0\0\0\0\1", "$t", b"\0\0\0\1\0\0\0\0\xff\xff\xff\xff"))
RANGE: Final = {"name": "range", "metadata": SUBSCRIPTION}
ROUND_ROBIN: Final = {"name": "roundrobin", "metadata": SUBSCRIPTION}
NOBODY: Final = "nobody-0"


def join_body(member: str = "", protocols: Any = (RANGE,), **more: Any) -> dict[str, Any]:
    """A JoinGroup request of group `$g`."""
    usual = {"group_id": "$g", "session_timeout": 30000, "rebalance_timeout": 30000, "protocol_type": "consumer"}
    return {**usual, "member_id": member, "protocols": list(protocols), **more}


def sync_body(
    member: str, generation: Any = "$generation", assigned: tuple[str, ...] = (), **more: Any
) -> dict[str, Any]:
    """A SyncGroup request of group `$g` that gives the same assignment to each of `assigned`."""
    rows = [{"member_id": name, "assignment": ASSIGNMENT} for name in assigned]
    kind = {"protocol_type": "consumer", "protocol_name": "range"}
    return {"group_id": "$g", "generation_id": generation, "member_id": member, "assignments": rows, **kind, **more}


def joined(member: str = "m", on: str = "a", **more: Any) -> tuple[Step, ...]:
    """Give `$g` its first member: join twice (the id is required), sync, Stable. Saves `<member>` and `generation`.

    :param more: other fields of the JoinGroup.
    """
    return (
        Step("join_group", version=9, on=on, body=join_body(**more), save={member: "member_id"},
             errors=("MEMBER_ID_REQUIRED",)),
        Step("join_group", version=9, on=on, body=join_body(f"${member}", **more),
             save={"generation": "generation_id"}),
        Step("sync_group", version=5, on=on, body=sync_body(f"${member}", assigned=(f"${member}",))),
    )  # fmt: skip


def in_state(state: str, group: str = "g", version: int | None = 5, on: str = "a") -> Step:
    """Wait until `$group` shows a state: Kafka describes its log's content, a moment behind its answers."""
    body = {"groups": [f"${group}"]}
    reached = ("groups[0].group_state", state)
    return Step("describe_groups", version=version, on=on, body=body, until=reached, errors=None)


def _join(*errors: str, on: str = "a", member: str = "", save: str = "", checked: bool = True, **more: Any) -> Step:
    saved = {save: "member_id"} if save else {}
    return Step("join_group", on=on, body=join_body(member, **more), save=saved, errors=errors if checked else None)


def _join_script(name: str, *steps: Step | Receive, start: int = 0) -> Script:
    return Script(f"join {name}", "join_group", *steps, versions=tuple(range(start, 10)))


JOIN: Final = (
    # Before v4 the first answer is the whole join; from v4 on the first answer only assigns the member id.
    _join_script("a new group", _join(save="m", checked=False), _join(member="$m", save="m")),
    _join_script(
        "and again as the only member",
        *joined(),
        _join(member="$m"),
        _join(member="$m", protocols=(RANGE, ROUND_ROBIN)),
    ),
    _join_script(
        "refused",
        _join("INVALID_SESSION_TIMEOUT", session_timeout=499),
        _join("INVALID_SESSION_TIMEOUT", session_timeout=1800001),
        _join("INVALID_GROUP_ID", group_id=""),
        _join("UNKNOWN_MEMBER_ID", member=NOBODY),
        _join("INCONSISTENT_GROUP_PROTOCOL", protocols=()),
        _join("INCONSISTENT_GROUP_PROTOCOL", protocol_type=""),
    ),
    _join_script(
        "refused beside a member",
        *joined(),
        _join("UNKNOWN_MEMBER_ID", member=NOBODY),
        _join("INCONSISTENT_GROUP_PROTOCOL", protocol_type="connect"),
        _join("INCONSISTENT_GROUP_PROTOCOL", protocols=(ROUND_ROBIN,)),
    ),
    _join_script(
        "second member",
        *joined(),
        Step("join_group", version=9, on="b", body=join_body(), save={"n": "member_id"},
             errors=("MEMBER_ID_REQUIRED",)),
        Step("join_group", on="b", body=join_body("$n", protocols=(ROUND_ROBIN, RANGE)), later=True),
        Step("heartbeat", {"group_id": "$g", "generation_id": "$generation", "member_id": "$m"},
             until=("error_code", "REBALANCE_IN_PROGRESS"), errors=("REBALANCE_IN_PROGRESS",)),
        Step("sync_group", sync_body("$m"), errors=("REBALANCE_IN_PROGRESS",)),
        Step("join_group", join_body("$m"), save={"generation": "generation_id"}),
        Receive(on="b"),
        Step("heartbeat", {"group_id": "$g", "generation_id": "$generation", "member_id": "$m"}),
        Step("sync_group", on="b", body=sync_body("$n"), later=True),
        Step("sync_group", sync_body("$m", assigned=("$m", "$n"))),
        Receive(on="b"),
        Step("sync_group", on="b", body=sync_body("$n")),
        # A follower that joins again unchanged in a Stable group gets the present generation.
        Step("join_group", on="b", body=join_body("$n", protocols=(ROUND_ROBIN, RANGE)), errors=None),
    ),
)  # fmt: skip


def _sync(*errors: str, member: str = "$m", generation: Any = "$generation", **more: Any) -> Step:
    return Step("sync_group", sync_body(member, generation, **more), errors=errors)


SYNC: Final = (
    Script("sync again", "sync_group", *joined(), _sync(), _sync(assigned=("$m",))),
    Script("sync a new generation", "sync_group", *joined()[:2], _sync(assigned=("$m",)), _sync()),
    Script("sync leader assigns nothing", "sync_group", *joined()[:2], _sync()),
    Script("sync refused", "sync_group", *joined(), _sync("ILLEGAL_GENERATION", generation=9),
           _sync("ILLEGAL_GENERATION", generation=-1), _sync("UNKNOWN_MEMBER_ID", member=NOBODY),
           _sync("UNKNOWN_MEMBER_ID", member=""), _sync("UNKNOWN_MEMBER_ID", group_id="$h"),
           _sync("INVALID_GROUP_ID", group_id="")),
    Script("sync other protocol", "sync_group", *joined(),
           _sync("INCONSISTENT_GROUP_PROTOCOL", protocol_type="connect"),
           _sync("INCONSISTENT_GROUP_PROTOCOL", protocol_name="roundrobin"),
           _sync("INCONSISTENT_GROUP_PROTOCOL", protocol_type=None, protocol_name=None), versions=(5,)),
)  # fmt: skip


def _beat(*errors: str, member: str = "$m", generation: Any = "$generation", group: str = "$g") -> Step:
    body = {"group_id": group, "generation_id": generation, "member_id": member}
    return Step("heartbeat", body, errors=errors)


HEARTBEAT: Final = (
    Script("heartbeat", "heartbeat", *joined(), _beat(), _beat("ILLEGAL_GENERATION", generation=9),
           _beat("ILLEGAL_GENERATION", generation=-1), _beat("UNKNOWN_MEMBER_ID", member=NOBODY),
           _beat("UNKNOWN_MEMBER_ID", member=""), _beat("UNKNOWN_MEMBER_ID", group="$h"),
           _beat("INVALID_GROUP_ID", group="")),
    Script("heartbeat before sync", "heartbeat", *joined()[:2], _beat()),
)  # fmt: skip


def _leave(*members: str, errors: tuple[str, ...] | None = (), group: str = "$g") -> Step:
    rows = [{"member_id": member, "reason": "leaving"} for member in members]
    body = {"group_id": group, "member_id": members[0] if members else "", "members": rows}
    return Step("leave_group", body, errors=errors)


LEAVE: Final = (
    Script("leave", "leave_group", *joined(), _leave(NOBODY, errors=("UNKNOWN_MEMBER_ID",)), _leave("$m"),
           _leave("$m", errors=("UNKNOWN_MEMBER_ID",)), in_state("Empty"), *joined("n")),
    Script("leave unknown groups", "leave_group", _leave(NOBODY, errors=("UNKNOWN_MEMBER_ID",)),
           _leave(NOBODY, "other-0", errors=("UNKNOWN_MEMBER_ID",)), _leave(NOBODY, group="", errors=None)),
    Script("leave several at once", "leave_group", *joined(), _leave(NOBODY, "$m", errors=("UNKNOWN_MEMBER_ID",)),
           _leave(errors=None), versions=(3, 4, 5)),
)  # fmt: skip

SCRIPTS: Final = (*JOIN, *SYNC, *HEARTBEAT, *LEAVE)
