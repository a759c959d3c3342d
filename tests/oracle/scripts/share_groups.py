"""Share groups (KIP-932).

Kafka acknowledges and acquires side by side. So a script releases records by a request of its own before it fetches
them again.

Source: GroupMetadataManager.shareGroupHeartbeat, SharePartitionManager, SharePartition
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from tests.oracle.batches import Batch
from tests.oracle.script import Script, Step
from tests.oracle.scripts import consumer_steps, transactions
from tests.oracle.scripts.consumer_configs import config_reads
from tests.oracle.scripts.consumer_configs import describe_config as described_configs
from tests.oracle.scripts.consumer_steps import group_config
from tests.oracle.scripts.membership import joined
from tests.oracle.scripts.steps import NO_SUCH_ID, new_topic, produced
from tests.oracle.values import Plus

ACCEPT, RELEASE, REJECT, RENEW, GAP = 1, 2, 3, 4, 0
FIRST_ACQUIRED: Final = "responses[0].partitions[0].acquired_records[0].first_offset"


def beat(who: str, epoch: Any, *errors: str, **more: Any) -> Step:
    """ShareGroupHeartbeat of a member; settings of `Step` go by their names."""
    settings = {name: more.pop(name) for name in ("until", "save", "ignore") if name in more}
    body = {"group_id": "$g", "member_id": who, "member_epoch": epoch, "subscribed_topic_names": None, **more}
    return Step("share_group_heartbeat", body, errors=errors, **settings)


def join(who: str, *errors: str, epoch: Any = 0, **more: Any) -> Step:
    """The first heartbeat of a member."""
    return beat(who, epoch, *errors, **{"subscribed_topic_names": ["$t"], **more})


def assigned(who: str = "m", group: str = "$g") -> Step:
    """Join until the topic's partitions are assigned: Kafka initializes them after the first heartbeat."""
    return join(
        who, group_id=group, until=("assignment.topic_partitions[0].partitions[0]", 0), save={"epoch": "member_epoch"},
        ignore=("member_epoch",),
    )  # fmt: skip


def described(
    state: str = "", *names: str, errors: tuple[str, ...] | None = (), ignore: tuple[str, ...] = (), **more: Any
) -> Step:
    reached = ("groups[0].group_state", state) if state else None
    ignored = ("groups[].group_epoch", "groups[].assignment_epoch", "groups[].members[].member_epoch")
    body = {"group_ids": list(names or ("$g",)), **more}
    return Step("share_group_describe", body, until=reached, errors=errors, ignore=(*ignored, *ignore))


def seen() -> tuple[Step, ...]:
    """The group as other APIs show it."""
    return (
        Step("describe_groups", version=6, body={"groups": ["$g"]}, errors=None),
        Step("list_groups", version=5, body={}),
        *(Step("list_groups", version=5, body={"types_filter": [kind]}) for kind in ("share", "Share", "consumer")),
        *(Step("list_groups", version=5, body={"states_filter": [one]}) for one in ("Stable", "Empty", "Dead")),
        Step("list_groups", version=4, body={}),
        Step("consumer_group_describe", version=1, body={"group_ids": ["$g"]}, errors=None),
    )


Acks = Sequence[tuple[int, int, Sequence[int]]]


def _topics(acks: Acks | Mapping[int, Acks] | None, partitions: Sequence[int], topic_id: Any) -> list[dict[str, Any]]:
    by_partition = acks if isinstance(acks, Mapping) else {partitions[0]: acks or ()} if partitions else {}
    parts = [
        {
            "partition_index": index,
            "acknowledgement_batches": [
                {"first_offset": first, "last_offset": last, "acknowledge_types": list(types)}
                for first, last, types in by_partition.get(index, ())
            ],
        }
        for index in partitions
    ]
    return [{"topic_id": topic_id, "partitions": parts}] if parts else []


def fetch(
    epoch: int, *errors: str, acks: Acks | Mapping[int, Acks] | None = None, partitions: Sequence[int] = (0,),
    topic_id: Any = "$t_id", who: str | None = "m", wait: int = 1000, until: Any = None, on: str = "a", **more: Any,
) -> Step:  # fmt: skip
    """ShareFetch, which waits for at least a record."""
    body = {
        "group_id": "$g", "member_id": who, "share_session_epoch": epoch, "max_wait": wait, "min_bytes": 1,
        "max_bytes": 1 << 20, "max_records": 500, "batch_size": 500,
        "topics": _topics(acks, partitions, topic_id), "forgotten_topics_data": [], **more,
    }  # fmt: skip
    return Step("share_fetch", body, errors=errors, until=until, on=on)


def first(offset: int = 0, **more: Any) -> Step:
    """The first ShareFetch of a session, until it acquires a record: Kafka resolves the start at first."""
    return fetch(0, until=(FIRST_ACQUIRED, offset), **more)


def ack(
    epoch: int, *errors: str, acks: Acks | Mapping[int, Acks] = (), partitions: Sequence[int] = (0,),
    topic_id: Any = "$t_id", who: str | None = "m", on: str = "a", **more: Any,
) -> Step:  # fmt: skip
    """ShareAcknowledge."""
    topics = _topics(acks, partitions, topic_id)
    body = {"group_id": "$g", "member_id": who, "share_session_epoch": epoch, "topics": topics, **more}
    return Step("share_acknowledge", body, errors=errors, on=on)


def start(*batches: Batch, partitions: int = 1, **configs: str) -> tuple[Step, ...]:
    """A topic with batches, and a group that reads it from the beginning.

    The configs come first: Kafka shows a change a moment before it counts.
    """
    settings = {"share.auto.offset.reset": "earliest"}
    settings.update({name.replace("_", "."): value for name, value in configs.items()})
    return (
        *(group_config(name, value) for name, value in settings.items()),
        *new_topic(partitions=partitions),
        *produced(*batches),
        assigned(),
    )


def _batch(count: int, at: int, value: bytes = b"value") -> Batch:
    return Batch(count=count, timestamp=Plus(var="now", amount=at), value=value)


def ten(at: int = 0) -> Batch:
    return _batch(10, at)


def _script(name: str, api: str, *steps: Step, versions: tuple[int, ...] = ()) -> Script:
    return Script(f"share group {name}", api, *steps, versions=versions)


HEARTBEAT: Final = (
    _script("of one member", "share_group_heartbeat", *new_topic(partitions=3), assigned(), described("Stable"),
            *seen(), beat("m", "$epoch", ignore=("member_epoch",)),
            beat("m", "$epoch", subscribed_topic_names=["$t"], ignore=("member_epoch",)),
            beat("m", "$epoch", rack_id="r", ignore=("member_epoch",)),
            described("Stable", include_authorized_operations=True), beat("m", -1), described("Empty"), *seen(),
            beat("m", -1, "UNKNOWN_MEMBER_ID"), beat("m", "$epoch", "UNKNOWN_MEMBER_ID")),
    _script("requests that are refused", "share_group_heartbeat", *new_topic(), join("", "INVALID_REQUEST"),
            join("m" * 37, "INVALID_REQUEST"), join("m", "INVALID_REQUEST", subscribed_topic_names=None),
            join("m", "INVALID_REQUEST", subscribed_topic_names=[]), join("m", "INVALID_REQUEST", group_id=""),
            join("m", "INVALID_REQUEST", epoch=-2), join("m", "INVALID_REQUEST", rack_id=""),
            beat("m", -1, "GROUP_ID_NOT_FOUND"), assigned(),
            beat("m", 99, "FENCED_MEMBER_EPOCH", ignore=("error_message",)), beat("nobody", 1, "UNKNOWN_MEMBER_ID"),
            beat("nobody", -1, "UNKNOWN_MEMBER_ID")),
    _script("that is not there", "share_group_heartbeat", beat("m", 1, "GROUP_ID_NOT_FOUND")),
    _script("described that is not there", "share_group_describe", described("", "$g", "$h", "", errors=None)),
    _script("described of another type", "share_group_describe", *new_topic(), *joined(),
            described("", "$g", errors=None)),
)  # fmt: skip

_EPOCH: Final = ("member_epoch",)
"""Kafka 4.4 has higher ones."""
_SHARED: Final = (*_EPOCH, "assignment.topic_partitions[].partitions")
_SHARED_BY: Final = ("groups[].members[].assignment.topic_partitions[].partitions",)
"""Which member gets which partition is by hashes of random ids in Kafka. So only the topic is compared."""


MEMBERS: Final = (
    _script("of members that share partitions", "share_group_heartbeat", *new_topic(partitions=2),
            group_config("share.assignment.interval.ms", "0"), assigned(), join("n", ignore=(*_EPOCH, "assignment")),
            *(join(who, ignore=_SHARED) for who in ("m", "n")), described("Stable", ignore=_SHARED_BY),
            join("o", ignore=(*_EPOCH, "assignment")), *(join(who, ignore=_SHARED) for who in ("m", "n", "o")),
            described("Stable", ignore=_SHARED_BY), beat("n", -1), *(join(who, ignore=_SHARED) for who in ("m", "o")),
            described("Stable", ignore=_SHARED_BY)),
    _script(
        "of members with other topics",
        "share_group_heartbeat",
        *new_topic(),
        *new_topic("u"),
        group_config("share.assignment.interval.ms", "0"),
        assigned(),
        join("m", subscribed_topic_names=["$t", "$u"], until=("assignment.topic_partitions[1].partitions[0]", 0),
             ignore=_EPOCH),
        join("m", subscribed_topic_names=["$u"], ignore=_EPOCH),
        join("n", subscribed_topic_names=["$h"], ignore=_EPOCH),
        described("Stable"),
    ),
)  # fmt: skip

OTHER_TYPES: Final = (
    _script("where a classic group is", "share_group_heartbeat", *new_topic(), *joined(),
            join("n", "GROUP_ID_NOT_FOUND"), beat("n", 1, "GROUP_ID_NOT_FOUND"), beat("n", -1, "GROUP_ID_NOT_FOUND")),
    _script("where a consumer group is", "share_group_heartbeat", *consumer_steps.known_topic(1),
            replace(consumer_steps.join("m"), ignore=("member_epoch",)), join("n", "GROUP_ID_NOT_FOUND"),
            beat("n", 1, "GROUP_ID_NOT_FOUND"), described("", "$g", errors=None)),
    _script(
        "where other members come",
        "share_group_heartbeat",
        *new_topic(),
        assigned(),
        replace(consumer_steps.join("n"), errors=None),
        replace(consumer_steps.beat("n", 1), errors=None),
        replace(joined()[0], errors=None, save={}),
        Step("sync_group", version=5, body={"group_id": "$g", "member_id": "m", "generation_id": 1}, errors=None),
        Step("heartbeat", version=4, body={"group_id": "$g", "member_id": "m", "generation_id": 1}, errors=None),
        Step("leave_group", version=5, body={"group_id": "$g", "members": [{"member_id": "m"}]}, errors=None),
        *(
            consumer_steps.commit(3, "GROUP_ID_NOT_FOUND", member=member, epoch=epoch)
            for member, epoch in (("", -1), ("m", 1))
        ),
        *(
            replace(consumer_steps.fetch(member=member, epoch=epoch), errors=None)
            for member, epoch in ((None, -1), ("m", 1))
        ),
        replace(consumer_steps.forget("$t"), errors=None),
        replace(consumer_steps.delete(), errors=None),
        beat("m", -1),
        described("Empty"),
        replace(consumer_steps.delete(), errors=None),
        described("", "$g", errors=None),
        *seen(),
    ),
)  # fmt: skip


def offsets(*partitions: int, name: str = "$t", every: bool = False, group: str = "$g", **more: Any) -> Step:
    """DescribeShareGroupOffsets."""
    topics = None if every else [{"topic_name": name, "partitions": list(partitions)}]
    return Step(
        "describe_share_group_offsets", {"groups": [{"group_id": group, "topics": topics}]}, errors=None, **more
    )


DELIVERY: Final = (
    _script("delivers and takes acceptance", "share_fetch", *start(ten(), ten(1)), first(),
            fetch(1, acks=[(0, 9, [ACCEPT])], wait=100), fetch(2, acks=[(10, 19, [ACCEPT])], wait=100),
            fetch(3, wait=100)),
    _script("delivers what was released again", "share_fetch", *start(ten()), first(),
            ack(1, acks=[(0, 3, [ACCEPT]), (4, 6, [RELEASE]), (7, 7, [REJECT]), (8, 9, [RELEASE])]), fetch(2),
            ack(3, acks=[(4, 6, [ACCEPT]), (8, 9, [ACCEPT, RELEASE])]), fetch(4),
            fetch(5, acks=[(9, 9, [GAP])], wait=100)),
    _script("delivers new records behind held ones", "share_fetch", *start(ten()), first(),
            fetch(1, wait=100), *produced(ten(1)), fetch(2), ack(3, acks=[(0, 19, [ACCEPT])]), fetch(4, wait=100)),
    _script("gives whole batches beyond the limit", "share_fetch", *start(ten(), ten(1), ten(2)),
            first(max_records=5), fetch(1, max_records=15), fetch(2, max_records=15, wait=100)),
    _script("splits what it acquires by the size of batches", "share_fetch",
            *start(_batch(3, 1), _batch(3, 2), _batch(3, 3)), first(batch_size=4), fetch(-1, partitions=())),
    _script("gives exactly as many records as asked", "share_fetch", *start(ten(), ten(1)),
            first(max_records=3, share_acquire_mode=1), fetch(1, max_records=4, share_acquire_mode=1),
            ack(2, acks=[(0, 2, [ACCEPT]), (3, 6, [RELEASE])]), fetch(3, max_records=2, share_acquire_mode=1),
            fetch(4, max_records=5, share_acquire_mode=1),
            fetch(5, max_records=3, share_acquire_mode=1), versions=(2,)),
    _script("takes several partitions", "share_fetch", *start(ten(), partitions=2), *produced(ten(), partition=1),
            first(partitions=(0,)), fetch(1, partitions=(1,)),
            ack(2, acks={0: [(0, 9, [ACCEPT])], 1: [(0, 9, [RELEASE])]}, partitions=(0, 1)), fetch(3, partitions=())),
    _script("begins at the end", "share_fetch", *start(ten(), share_auto_offset_reset="latest"),
            fetch(0, wait=2000), *produced(ten(1)), fetch(1)),
    _script("loses records from its end by DeleteRecords", "share_fetch", *start(ten(), ten(1)),
            first(), Step("delete_records", {"timeout": 5000, "topics": [
                {"name": "$t", "partitions": [{"partition_index": 0, "offset": 10}]}]}),
            ack(1, acks=[(0, 9, [RELEASE])]), fetch(2, wait=100), ack(3, acks=[(10, 19, [RELEASE])]), fetch(4)),
    _script("archives after the last delivery", "share_fetch", *start(_batch(1, 1), share_delivery_count_limit="2"),
            first(), ack(1, acks=[(0, 0, [RELEASE])]), fetch(2), ack(3, acks=[(0, 0, [RELEASE])]), fetch(4, wait=100)),
    _script("isolates poison", "share_fetch", *start(ten(), share_delivery_count_limit="4"), first(),
            *(step for epoch in (1, 3) for step in (ack(epoch, acks=[(0, 9, [RELEASE])]), fetch(epoch + 1))),
            ack(5, acks=[(0, 4, [RELEASE])]), fetch(6), fetch(7), fetch(8, wait=100)),
    _script("shares a partition among members", "share_fetch", *start(ten(), ten(1)), first(max_records=5),
            fetch(0, who="n", on="b", max_records=5), fetch(1, wait=100), fetch(1, who="n", on="b", wait=100),
            ack(2, acks=[(0, 9, [RELEASE])]), fetch(2, who="n", on="b"),
            ack(3, who="n", on="b", acks=[(0, 19, [ACCEPT])]), fetch(3, wait=100)),
    _script("holds at most the window", "share_fetch",
            *start(*(_batch(50, at) for at in range(4)), share_partition_max_record_locks="100"),
            first(), fetch(1, wait=100), ack(2, acks=[(50, 99, [ACCEPT])]), fetch(3, wait=100),
            ack(4, acks=[(0, 49, [ACCEPT])]), fetch(5), fetch(6, wait=100)),
    *(
        _script(f"reads transactions that are {what}, {level}", "share_fetch",
                *start(ten(), share_isolation_level=level), first(), transactions.READY, transactions.init(),
                transactions.add(), transactions.send(count=3), fetch(1, wait=500), transactions.end(commit=commit),
                transactions.state(final), *produced(ten(1)), fetch(2), fetch(3, wait=100))
        for what, commit, final in (("committed", True, "CompleteCommit"), ("aborted", False, "CompleteAbort"))
        for level in ("read_uncommitted", "read_committed")
    ),
)  # fmt: skip

LATER: Final = (
    _script("ends locks", "share_fetch", *start(ten(), share_record_lock_duration_ms="15000"), first(),
            fetch(1, wait=100), first(wait=30_000), ack(1, acks=[(0, 9, [ACCEPT])]), fetch(2, wait=100), versions=(2,)),
    _script("reads a topic that is made again", "share_fetch", *start(ten()), first(),
            Step("delete_topics", version=5, body={"topic_names": ["$t"], "timeout": 10_000}),
            Step("metadata", version=12, body={"topics": [{"name": "$t"}], "allow_auto_topic_creation": False},
                 errors=None, until=("topics[0].error_code", "UNKNOWN_TOPIC_OR_PARTITION")),
            fetch(1, "UNKNOWN_TOPIC_OR_PARTITION", partitions=(), wait=100),
            ack(2, "UNKNOWN_TOPIC_ID", acks=[(0, 9, [ACCEPT])]),
            *new_topic(), *produced(ten()), assigned(), first()),
    _script("reads a partition beside another group", "share_fetch", *start(ten()), first(),
            replace(group_config("share.auto.offset.reset", "earliest", group="$h")), assigned(group="$h"),
            replace(first(on="b"), body={**first().body, "group_id": "$h"}), ack(1, acks=[(0, 9, [ACCEPT])]),
            fetch(1, on="b", group_id="$h", acks=[(0, 9, [ACCEPT])], wait=100)),
    _script("takes as many bytes as it may", "share_fetch", *start(*(_batch(5, at, b"x" * 1000) for at in range(4))),
            replace(first(max_bytes=6000), ignore=("responses[].partitions[].records",)), fetch(1, max_bytes=1),
            fetch(2, max_bytes=12_000), fetch(3, wait=100)),
)  # fmt: skip

ACKNOWLEDGE: Final = (
    _script("takes acknowledgements", "share_acknowledge", *start(ten()), first(),
            ack(1, acks=[(0, 3, [ACCEPT]), (4, 6, [RELEASE])]), ack(2, acks=[(7, 9, [ACCEPT, REJECT, GAP])]),
            fetch(3), ack(4, acks=[(4, 6, [ACCEPT, GAP, ACCEPT])]), fetch(5, wait=100)),
    _script("refuses wrong acknowledgements", "share_acknowledge", *start(ten()), first(),
            ack(1, "INVALID_REQUEST", acks=[(3, 2, [ACCEPT])]),
            ack(2, "INVALID_REQUEST", acks=[(3, 4, [ACCEPT]), (0, 1, [ACCEPT])]),
            ack(3, "INVALID_REQUEST", acks=[(0, 3, [ACCEPT, ACCEPT])]), ack(4, "INVALID_REQUEST", acks=[(0, 3, [])]),
            ack(5, "INVALID_REQUEST", acks=[(0, 3, [9])]), ack(6, "INVALID_REQUEST", acks=[(0, 3, [RENEW])]),
            ack(7, "INVALID_REQUEST", acks=[(20, 30, [ACCEPT])]), ack(8, "INVALID_REQUEST", acks=[(8, 12, [ACCEPT])]),
            ack(9, acks=[(0, 1, [ACCEPT])]), ack(10, acks=[(0, 1, [ACCEPT])]), ack(11, acks=[(0, 3, [ACCEPT])]),
            ack(12, acks=[(4, 5, [RELEASE])]), ack(13, "INVALID_RECORD_STATE", acks=[(4, 5, [ACCEPT])]),
            ack(14, "INVALID_RECORD_STATE", acks=[(6, 7, [ACCEPT]), (4, 5, [ACCEPT])][::-1]),
            ack(15, acks=[(6, 7, [ACCEPT])])),
    _script("refuses acknowledgements of another member", "share_acknowledge", *start(ten()), first(),
            fetch(0, who="n", on="b", wait=100),
            ack(1, "INVALID_RECORD_STATE", who="n", on="b", acks=[(0, 9, [ACCEPT])]), ack(1, acks=[(0, 9, [ACCEPT])])),
    _script("refuses acknowledgements of partitions that are not there", "share_acknowledge", *start(ten()), first(),
            ack(1, "UNKNOWN_TOPIC_OR_PARTITION", partitions=(7,), acks=[(0, 1, [ACCEPT])]),
            ack(2, "UNKNOWN_TOPIC_ID", topic_id=NO_SUCH_ID, acks=[(0, 1, [ACCEPT])])),
    _script("renews locks", "share_acknowledge", *start(ten()), first(),
            ack(1, acks=[(0, 4, [RENEW]), (5, 9, [ACCEPT])], is_renew_ack=True),
            ack(2, acks=[(0, 4, [ACCEPT])]), fetch(3, wait=100), versions=(2,)),
    _script("renews locks by ShareFetch", "share_fetch", *start(ten()), first(),
            fetch(1, "INVALID_REQUEST", acks=[(0, 4, [RENEW])], is_renew_ack=True),
            fetch(1, acks=[(0, 4, [RENEW])], is_renew_ack=True, wait=0, min_bytes=0, max_bytes=0, max_records=0),
            fetch(2, acks=[(0, 4, [RENEW])], wait=100), versions=(2,)),
    _script("renews no locks where that is off", "share_acknowledge",
            *start(ten(), share_renew_acknowledge_enable="false"), first(),
            ack(1, "INVALID_RECORD_STATE", acks=[(0, 4, [RENEW])], is_renew_ack=True), versions=(2,)),
)  # fmt: skip

SESSIONS: Final = (
    _script("sessions by their epochs", "share_fetch", *start(ten()), first(),
            fetch(2, "INVALID_SHARE_SESSION_EPOCH"), fetch(0, "INVALID_REQUEST", acks=[(0, 9, [ACCEPT])]),
            fetch(1, "SHARE_SESSION_NOT_FOUND", who="n"), fetch(-1, "SHARE_SESSION_NOT_FOUND", who="n"),
            fetch(1, wait=100), ack(1, "INVALID_SHARE_SESSION_EPOCH", acks=[(0, 0, [ACCEPT])]),
            ack(0, "INVALID_SHARE_SESSION_EPOCH", acks=[(0, 0, [ACCEPT])]),
            ack(1, "SHARE_SESSION_NOT_FOUND", who="n", acks=[(0, 0, [ACCEPT])]),
            ack(2, acks=[(0, 0, [ACCEPT])]), fetch(3, wait=100)),
    _script("session that ends releases", "share_fetch", *start(ten()), first(),
            fetch(-1, acks=[(0, 3, [ACCEPT])]), fetch(1, "SHARE_SESSION_NOT_FOUND"), first(4)),
    _script("session that ends by ShareAcknowledge releases", "share_acknowledge", *start(ten()), first(),
            ack(-1, acks=[(0, 3, [ACCEPT])]), ack(1, "SHARE_SESSION_NOT_FOUND"), first(4), ack(-1, partitions=())),
    _script("session without records to give", "share_fetch", *start(ten()), first(),
            fetch(1, partitions=(), wait=100), fetch(2, wait=100)),
    _script("session that forgets", "share_fetch", *start(ten(), partitions=2), *produced(ten(), partition=1),
            first(partitions=(0,)), fetch(1, partitions=(1,)),
            fetch(2, partitions=(), forgotten_topics_data=[{"topic_id": "$t_id", "partitions": [0]}], wait=100),
            fetch(3, acks={0: [(0, 9, [ACCEPT])]}, partitions=(0,), wait=100)),
    _script("fetches that are refused", "share_fetch", *start(ten()), fetch(0, "INVALID_REQUEST", who=""),
            fetch(0, "INVALID_REQUEST", who=None), fetch(0, "INVALID_REQUEST", who="m" * 37),
            fetch(0, "INVALID_REQUEST", group_id=None), fetch(-1, "SHARE_SESSION_NOT_FOUND", partitions=()),
            fetch(0, partitions=(), wait=0)),
    _script("partitions that are not there", "share_fetch", *start(ten()),
            fetch(0, "UNKNOWN_TOPIC_OR_PARTITION", partitions=(7,), wait=100),
            fetch(0, "UNKNOWN_TOPIC_ID", topic_id=NO_SUCH_ID, wait=100)),
    _script("acknowledgements that are refused", "share_acknowledge", *start(ten()), ack(0, "INVALID_REQUEST", who=""),
            ack(0, "INVALID_REQUEST", who="m" * 37), ack(0, "INVALID_REQUEST", group_id=None)),
    _script("records of a group that is not there", "share_fetch", *new_topic(), *produced(ten()),
            group_config("share.auto.offset.reset", "earliest"), fetch(0, "UNKNOWN_SERVER_ERROR", wait=2000)),
)  # fmt: skip


def alter(offset: int, *errors: str, partition: int = 0, name: str = "$t", group: str = "$g") -> Step:
    """AlterShareGroupOffsets."""
    parts = [{"partition_index": partition, "start_offset": offset}]
    topics = [{"topic_name": name, "partitions": parts}]
    return Step("alter_share_group_offsets", {"group_id": group, "topics": topics}, errors=errors)


def forget(*errors: str, name: str = "$t", group: str = "$g") -> Step:
    """DeleteShareGroupOffsets."""
    body = {"group_id": group, "topics": [{"topic_name": name}]}
    return Step("delete_share_group_offsets", body, errors=errors)


_START: Final = "groups[0].topics[0].partitions[0].start_offset"

OFFSETS: Final = (
    _script("offsets", "describe_share_group_offsets", *start(ten(), partitions=2), offsets(0, 1), first(),
            ack(1, acks=[(0, 3, [ACCEPT]), (6, 7, [ACCEPT])]), offsets(0, until=(_START, 4)), offsets(0, 1, 7),
            offsets(every=True), offsets(0, name="$u"), offsets(0, group="$h"), offsets(every=True, group="$h")),
    _script("offsets before any acknowledgement", "describe_share_group_offsets", *start(ten()), first(), offsets(0)),
    _script("offsets that are moved", "alter_share_group_offsets", *start(ten(), ten(1)), first(),
            alter(5, "NON_EMPTY_GROUP"), fetch(-1, partitions=()), beat("m", -1), described("Empty"),
            alter(5), offsets(0, until=(_START, 5)), alter(5, "UNKNOWN_TOPIC_OR_PARTITION", partition=9),
            alter(5, "UNKNOWN_TOPIC_OR_PARTITION", name="$u"), alter(5, group="$h")),
    _script("offsets that are deleted", "delete_share_group_offsets", *start(ten()), first(),
            forget("NON_EMPTY_GROUP"), fetch(-1, partitions=()), beat("m", -1), described("Empty"),
            forget(), offsets(every=True), *(forget("UNKNOWN_TOPIC_OR_PARTITION", name=name) for name in ("$t", "$u")),
            forget("GROUP_ID_NOT_FOUND", group="$h")),
    _script("that is deleted loses its offsets", "delete_share_group_offsets", *start(ten()), first(),
            ack(1, acks=[(0, 3, [ACCEPT])]), fetch(-1, partitions=()), beat("m", -1), described("Empty"),
            Step("delete_groups", version=2, body={"groups_names": ["$g"]}), offsets(every=True)),
)  # fmt: skip


_CONFIGS: Final[Mapping[str, tuple[str, ...]]] = {
    "share.auto.offset.reset": ("earliest", "Latest", "by_duration:PT1H", "by_duration:1", "none", ""),
    "share.isolation.level": ("read_committed", "READ_COMMITTED", "7"),
    "share.session.timeout.ms": ("50000", "44999", "60001", "x"),
    "share.heartbeat.interval.ms": ("6000", "4999", "15001"),
    "share.record.lock.duration.ms": ("15000", "14999", "60001"),
    "share.delivery.count.limit": ("2", "1", "10", "11"),
    "share.partition.max.record.locks": ("100", "99", "4000", "4001"),
    "share.renew.acknowledge.enable": ("false", "maybe"),
    "share.assignment.interval.ms": ("0", "-1", "15000", "15001"),
    "share.assignor.offload.enable": ("true", "maybe"),
    "consumer.assignment.interval.ms": ("0", "-1", "15000", "15001"),
    "consumer.assignor.offload.enable": ("true", "maybe"),
    "streams.assignment.interval.ms": ("0", "-1", "15001"),
    "no.such.config": ("1",),
}

CONFIGS: Final = (
    _script(
        "configs",
        "share_group_heartbeat",
        *(replace(group_config(name, value), errors=None) for name, values in _CONFIGS.items() for value in values),
        config_reads("streams.assignment.interval.ms", "0"),
        described_configs(*_CONFIGS),
        described_configs(
            *(name for name in _CONFIGS if re.match(r"share\.[^a]|share\.auto", name)), include_synonyms=True
        ),
    ),
)


SCRIPTS: Final = (*CONFIGS, *HEARTBEAT, *MEMBERS, *LATER, *OTHER_TYPES, *DELIVERY, *ACKNOWLEDGE, *SESSIONS, *OFFSETS)
