"""Committed offsets, and groups as an administrator sees them.

Source: OffsetMetadataManager, GroupCoordinatorService.
"""

from collections.abc import Mapping
from typing import Any, Final

from tests.oracle.script import CLOSED, Script, Step
from tests.oracle.scripts.membership import NOBODY, in_state, joined
from tests.oracle.scripts.steps import NO_SUCH_ID, committed, new_topic


def _row(partition: int = 0, offset: int = 5, metadata: str | None = "m", **more: Any) -> dict[str, Any]:
    return {"partition_index": partition, "committed_offset": offset, "committed_metadata": metadata, **more}


def _commit(
    *rows: Mapping[str, Any], errors: tuple[str, ...] | None = (), member: str = "", generation: Any = -1,
    name: str = "$t", topic_id: Any = "$t_id", group: str = "$g", **more: Any,
) -> Step:  # fmt: skip
    topics = [{"name": name, "topic_id": topic_id, "partitions": list(rows)}]
    body = {
        "group_id": group, "member_id": member, "retention_time": -1,
        "generation_id_or_member_epoch": generation, "topics": topics, **more,
    }  # fmt: skip
    return Step("offset_commit", body, errors=errors)


def _fetch(
    *partitions: int, name: str = "$t", topic_id: Any = "$t_id", group: str = "$g",
    errors: tuple[str, ...] | None = (), every: bool = False, member: Mapping[str, Any] | None = None, **more: Any,
) -> Step:  # fmt: skip
    topics = None if every else [{"name": name, "topic_id": topic_id, "partition_indexes": list(partitions)}]
    groups = [{"group_id": group, "topics": topics, **(member or {})}]
    return Step("offset_fetch", {"group_id": group, "topics": topics, "groups": groups, **more}, errors=errors)


def _commit_script(name: str, *steps: Step, start: int = 2) -> Script:
    return Script(f"commit {name}", "offset_commit", *steps, versions=tuple(range(start, 11)))


READ: Final = Step(
    "offset_fetch",
    version=8,
    body={"groups": [{"group_id": "$g", "topics": [{"name": "$t", "partition_indexes": [0, 1, 2]}]}]},
)

COMMIT: Final = (
    _commit_script("without members", *new_topic(partitions=2), _commit(_row(0, 7), _row(1, 0, None)), READ,
                   _commit(_row(0, 3, "")), READ),
    _commit_script("as a member", *new_topic(), *joined(), _commit(_row(), member="$m", generation="$generation"),
                   READ),
    _commit_script("with a leader epoch", *new_topic(), _commit(_row(committed_leader_epoch=4)), READ, start=6),
    _commit_script("refused by the group", *new_topic(), *joined(),
                   _commit(_row(), member="$m", generation=9, errors=("ILLEGAL_GENERATION",)),
                   _commit(_row(), member=NOBODY, generation="$generation", errors=("UNKNOWN_MEMBER_ID",)),
                   _commit(_row(), errors=("UNKNOWN_MEMBER_ID",)), READ),
    _commit_script("refused without a group", *new_topic(), _commit(_row(), member=NOBODY, generation=1, errors=None),
                   _commit(_row(), group="", errors=None), READ),
    _commit_script("before sync", *new_topic(), *joined()[:2],
                   _commit(_row(), member="$m", generation="$generation", errors=("REBALANCE_IN_PROGRESS",)), READ),
    _commit_script(
        "metadata too large",
        *new_topic(partitions=2),
        _commit(_row(0, metadata="x" * 4097), _row(1, metadata="x" * 4096), errors=("OFFSET_METADATA_TOO_LARGE",)),
        READ,
    ),
    _commit_script("unknown topic and partition", *new_topic(),
                   _commit(_row(0), _row(1), _row(5), errors=("UNKNOWN_TOPIC_OR_PARTITION",)),
                   *(_commit(_row(0), name="$u", topic_id=one, errors=None) for one in (NO_SUCH_ID, None)), READ),
    Script("commit with a retention time", "offset_commit", *new_topic(), *joined(),
           _commit(_row(), member="$m", generation="$generation", retention_time=1234), READ, versions=(2, 3, 4)),
    Script("commit metadata of characters that count twice", "offset_commit", *new_topic(),
           _commit(_row(0, 1, "ü" * 4096)), _commit(_row(0, 2, "\U0001f426" * 2048)),
           _commit(_row(0, 3, "\U0001f426" * 2049), errors=("OFFSET_METADATA_TOO_LARGE",)), READ, versions=(9,)),
    _commit_script("negative offset", *new_topic(), _commit(_row(0, -3)), READ),
    _commit_script("nothing", *new_topic(), _commit(), _commit(topics=[])),
)  # fmt: skip


def _fetch_script(name: str, *steps: Step, start: int = 1) -> Script:
    return Script(f"committed {name}", "offset_fetch", *steps, versions=tuple(range(start, 11)))


UNKNOWN: Final = (
    _fetch(name="$u", topic_id=NO_SUCH_ID),
    *(_fetch(0, name="$u", topic_id=one, errors=None) for one in (NO_SUCH_ID, None)),
)
FETCH: Final = (
    _fetch_script(
        "offsets", *new_topic(partitions=3), committed(7, 0), _fetch(0, 1, 2), _fetch(1), _fetch(9), *UNKNOWN
    ),
    _fetch_script(
        "offsets of every topic",
        *new_topic(),
        *new_topic("u"),
        committed(7),
        committed(2, name="u"),
        _fetch(every=True),
        start=2,
    ),
    _fetch_script("offsets of an unknown group", *new_topic(), _fetch(0), *UNKNOWN),
    _fetch_script("offsets of every topic of an unknown group", _fetch(every=True), start=2),
    Script("committed offsets of every topic before null means it", "offset_fetch",
           _fetch(every=True, errors=(CLOSED,)), versions=(1,)),
    _fetch_script("offsets of an empty group id", *new_topic(), _fetch(0, group="", errors=None)),
    _fetch_script("offsets that are stable", *new_topic(), committed(7), _fetch(0, require_stable=True), start=7),
    _fetch_script(
        "offsets of two groups",
        *new_topic(),
        committed(7),
        committed(2, group="h"),
        Step(
            "offset_fetch",
            {
                "groups": [
                    {"group_id": name, "topics": [{"name": "$t", "topic_id": "$t_id", "partition_indexes": [0]}]}
                    for name in ("$g", "$h", "$w")
                ]
            },
        ),
        start=8,
    ),
    _fetch_script(
        "offsets as a member",
        *new_topic(),
        *joined(),
        _fetch(0, member={"member_id": "$m", "member_epoch": "$generation"}, errors=None),
        _fetch(0, member={"member_id": NOBODY, "member_epoch": 3}, errors=None),
        start=9,
    ),
)  # fmt: skip


def _forget(*partitions: int, errors: tuple[str, ...] | None = (), name: str = "$t", group: str = "$g") -> Step:
    rows = [{"partition_index": partition} for partition in partitions]
    return Step("offset_delete", {"group_id": group, "topics": [{"name": name, "partitions": rows}]}, errors=errors)


OFFSET_DELETE: Final = (
    Script("delete offsets", "offset_delete", *new_topic(partitions=3), committed(7, 5), _forget(0, 2), READ,
           _forget(0, 8, errors=("UNKNOWN_TOPIC_OR_PARTITION",)),
           _forget(0, name="$u", errors=("UNKNOWN_TOPIC_OR_PARTITION",)),
           _forget(0, group="$h", errors=("GROUP_ID_NOT_FOUND",)), _forget(0, group="", errors=None)),
    Script("delete offsets of a subscribed topic", "offset_delete", *new_topic(), *new_topic("u"), committed(7),
           committed(3, name="u"), *joined(), _forget(0, errors=("GROUP_SUBSCRIBED_TO_TOPIC",)), _forget(0, name="$u"),
           READ),
)  # fmt: skip


def _list(**body: Any) -> Step:
    return Step("list_groups", body, errors=None)


LIST: Final = (
    Script(
        "list groups",
        "list_groups",
        *new_topic(),
        *joined(),
        in_state("Stable"),
        committed(1, group="h"),
        _list(),
        *(_list(states_filter=[state]) for state in ("Stable", "empty", "stable", "Dead", "assigning", "NoSuchState")),
        *(_list(types_filter=[kind]) for kind in ("classic", "Classic", "consumer", "nonsense")),
        _list(states_filter=["empty", "Stable"], types_filter=["Classic", "consumer"]),
    ),
)


def _describe(*groups: str, errors: tuple[str, ...] | None = (), **more: Any) -> Step:
    return Step("describe_groups", {"groups": list(groups), **more}, errors=errors)


DESCRIBE: Final = (
    Script("describe groups", "describe_groups", *new_topic(), *joined()[:2],
           in_state("CompletingRebalance", version=None), *joined()[2:], in_state("Stable", version=None),
           committed(1, group="h"), _describe("$g", "$h"), _describe("$g", "$g"), _describe()),
    Script("describe unknown groups", "describe_groups", _describe("$g", errors=None), _describe("", errors=None)),
    Script("describe groups with authorized operations", "describe_groups", *joined(), in_state("Stable"),
           _describe("$g", include_authorized_operations=True), versions=(3, 4, 5, 6)),
)  # fmt: skip


def _delete(*groups: str, errors: tuple[str, ...] | None = ()) -> Step:
    return Step("delete_groups", {"groups_names": list(groups)}, errors=errors)


DELETE: Final = (
    Script("delete groups", "delete_groups", *new_topic(), committed(4),
           _delete("$g", "$h", errors=("GROUP_ID_NOT_FOUND",)), READ, _describe("$g", errors=None),
           _delete("$g", errors=("GROUP_ID_NOT_FOUND",)), committed(4), *joined(), committed(4, group="h"),
           _delete("$g", "$h", "$u", errors=("GROUP_ID_NOT_FOUND", "NON_EMPTY_GROUP")), _delete()),
    Script("delete a group with members", "delete_groups", *joined(), _delete("$g", errors=("NON_EMPTY_GROUP",)),
           Step("leave_group", version=5, body={"group_id": "$g", "members": [{"member_id": "$m"}]}), _delete("$g")),
    Script("delete a group twice in one request", "delete_groups", *new_topic(), committed(4),
           _delete("$g", "$g", errors=None)),
)  # fmt: skip

SCRIPTS: Final = (*COMMIT, *FETCH, *OFFSET_DELETE, *LIST, *DESCRIBE, *DELETE)
