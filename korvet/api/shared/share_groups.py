"""What ShareFetch and ShareAcknowledge have in common: their topics, acknowledgements, and a group's settings.

Source: KafkaApis.handleAcknowledgements, releaseSession of SharePartitionManager, ShareGroupConfigProvider
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence, Set
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Any, Final, NamedTuple, Protocol
from uuid import UUID

from korvet.api.shared import needs
from korvet.api.shared.context import Context, Frontend
from korvet.api.shared.data_failures import failure_code, failure_message
from korvet.api.shared.share_acknowledgements import Batch, acknowledged
from korvet.api.shared.share_sessions import Name, ShareSession, TopicPartition
from korvet.codes import (
    GROUP_AUTHORIZATION_FAILED,
    INVALID_RECORD_STATE,
    INVALID_REQUEST,
    TOPIC_AUTHORIZATION_FAILED,
    UNKNOWN_TOPIC_ID,
    UNKNOWN_TOPIC_OR_PARTITION,
)
from korvet.errors import KorvetError
from korvet.security.rights import Rights
from korvet.store.catalog.settings import GroupSetting
from korvet.store.log.state.partition import Partition
from korvet.store.shares.dead_letters import TOPIC as DEAD_LETTER_TOPIC
from korvet.store.shares.types import Acknowledgement, AcknowledgeType, Acquirer, Limits, Reset
from korvet.wire.writer import Fields

LOCK_DURATION: Final = "share.record.lock.duration.ms"
_DELIVERIES: Final = "share.delivery.count.limit"
_RECORD_LOCKS: Final = "share.partition.max.record.locks"
_BACKOFF: Final = "korvet.share.retry.backoff.ms"
_MOST_BACKOFF: Final = "korvet.share.retry.backoff.max.ms"
_RENEWS: Final = "share.renew.acknowledge.enable"
_RENEW_SINCE: Final = 2
_LONGEST_MEMBER_ID: Final = 36
_RESET: Final = "share.auto.offset.reset"
_DURATION: Final = re.compile(r"p(?:(\d+)d)?(?:t(?:(\d+)h)?(?:(\d+)m)?(?:(\d+(?:[.,]\d*)?)s)?)?")
_LONGEST_AGE_S: Final = 100_000_000_000
"""More than any record's age."""
NO_ID: Final = UUID(int=0)


_NOTHING: Final[Fields] = {
    "acknowledge_error_code": 0,
    "current_leader": {"leader_id": 0, "leader_epoch": 0},
    "acquired_records": (),
}
"""Fields of a partition that has nothing to say there; korvet never hints at another leader."""
_NO_LEADER: Final[Fields] = {"current_leader": {"leader_id": -1, "leader_epoch": -1}}
"""Of a partition with an error: franz-go moves it to the leader that it finds there, also to node 0, for good."""


class Outcome(NamedTuple):
    """What became of a partition's acknowledgements: Kafka's error code and a message."""

    code: int
    message: str | None = None


class Member(NamedTuple):
    """A member of a group, by the connection that opened its session."""

    group_id: str
    acquirer: Acquirer

    @classmethod
    def of(cls, session: ShareSession) -> Member:
        """The member of a session."""
        group_id, member_id = session.name
        return cls(group_id, Acquirer(member_id, session.nonce))


class OfMember(Protocol):
    """A request of a member."""

    @property
    def group_id(self) -> str | None: ...
    @property
    def member_id(self) -> str | None: ...


class Part(Protocol):
    """A partition with its acknowledgements."""

    @property
    def partition_index(self) -> int: ...
    @property
    def acknowledgement_batches(self) -> Sequence[Batch]: ...


class PartsOfTopic(Protocol):
    """A topic of a request."""

    @property
    def topic_id(self) -> UUID | None: ...
    @property
    def partitions(self) -> Sequence[Part]: ...


def parts_of(topics: Iterable[PartsOfTopic]) -> dict[TopicPartition, Sequence[Batch]]:
    """The acknowledgements of a request by partition; if one is named twice, its last entry counts."""
    return {
        (topic.topic_id or NO_ID, part.partition_index): part.acknowledgement_batches
        for topic in topics
        for part in topic.partitions
    }


# ---------------------------------------------------------------------- whole requests


def check(_ctx: Context, rights: Rights, request: OfMember) -> needs.Narrowed | None:
    """The check of the right to read the group; the handler checks the topics."""
    if request.group_id is None or rights.allows(needs.READ, needs.GROUP, request.group_id):
        return None
    return needs.refusal(refused(GROUP_AUTHORIZATION_FAILED))


def name_of(request: OfMember) -> Name | None:
    """The ids of group and member in a request; None, for INVALID_REQUEST, if one is missing."""
    if request.group_id is None or not 0 < len(request.member_id or "") <= _LONGEST_MEMBER_ID:
        return None
    return request.group_id, request.member_id or ""


def refused(code: int, message: str | None = None) -> Fields:
    """The refusal of a whole request."""
    return {"error_code": code, "error_message": message, "acquisition_lock_timeout": 0, "responses": ()}


def answered(entries: Mapping[TopicPartition, Mapping[str, Any]], lock_ms: int) -> Fields:
    """An answer with fields for each partition."""
    topics: dict[UUID, list[Fields]] = {}
    for (id, index), fields in entries.items():
        entry = {**_NOTHING, **(_NO_LEADER if fields["error_code"] else {}), **fields, "partition_index": index}
        topics.setdefault(id, []).append(entry)
    return {
        "error_code": 0,
        "acquisition_lock_timeout": lock_ms,
        "responses": [{"topic_id": id, "partitions": partitions} for id, partitions in topics.items()],
    }


# ---------------------------------------------------------------------- groups and topics


def limits_of(frontend: Frontend, group_id: str) -> Limits:
    """The limits of a group's share partitions."""
    return frontend.catalog.of_group(group_id, _limits)


def _limits(setting: GroupSetting) -> Limits:
    return Limits(
        lock_ms=int(setting(LOCK_DURATION)),
        deliveries=int(setting(_DELIVERIES)),
        window=int(setting(_RECORD_LOCKS)),
        backoff_ms=int(setting(_BACKOFF)),
        backoff_most_ms=int(setting(_MOST_BACKOFF)),
        dead_letters=bool(setting(DEAD_LETTER_TOPIC)),
    )


def reset_of(setting: GroupSetting) -> Reset | timedelta:
    """Where a group begins in a partition that it has not read: also at the first record not older than a time."""
    named = setting(_RESET).lower()
    if named == "earliest":
        return "earliest"
    if named == "latest":
        return "latest"
    parts = _DURATION.fullmatch(named.removeprefix("by_duration:"))
    numbers = (float((part or "0").replace(",", ".")) for part in parts.groups()) if parts else ()
    seconds = sum(number * unit for number, unit in zip(numbers, (86_400, 3_600, 60, 1), strict=False))
    return timedelta(seconds=min(seconds, _LONGEST_AGE_S))


class Topics:
    """The topics of a request, and which of them its client may not read."""

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        self._denied: Set[str] = frozenset()

    async def look_up(self, named: Sequence[TopicPartition]) -> None:
        """Find the topics of partitions. The catalog is read if its cache lacks one."""
        frontend, rights = self._ctx.frontend, self._ctx.rights
        topic_by_id = frontend.catalog.topic_by_id
        if not all((topic := topic_by_id(id)) and index < topic.partitions for id, index in named):
            with suppress(KorvetError):
                await frontend.catalog.refresh()
        if rights is not None:
            ids = dict.fromkeys(id for id, _ in named)
            names = [topic.name for id in ids if (topic := topic_by_id(id)) is not None]
            self._denied = await frontend.turns.result(
                needs.denied_names(self._ctx, rights, needs.READ, needs.TOPIC, names)
            )

    def partition(self, named: TopicPartition) -> Partition | int:
        """A partition; or the error code for a client that may not read it, or that names no partition."""
        id, index = named
        topic = self._ctx.frontend.catalog.topic_by_id(id)
        if topic is None:
            return UNKNOWN_TOPIC_ID
        if topic.name in self._denied:
            return TOPIC_AUTHORIZATION_FAILED
        if not 0 <= index < topic.partitions:
            return UNKNOWN_TOPIC_OR_PARTITION
        return self._ctx.frontend.log.partition(topic, index)


# ---------------------------------------------------------------------- acknowledgements


class _Call(NamedTuple):
    named: TopicPartition
    partition: Partition
    runs: Sequence[Acknowledgement]


async def acknowledge(
    ctx: Context,
    member: Member,
    parts: Mapping[TopicPartition, Sequence[Batch]],
    topics: Topics,
    *,
    is_renewal: bool,
) -> dict[TopicPartition, Outcome]:
    """Acknowledge records in some partitions, in each of them all or none."""
    may_renew = is_renewal and ctx.version >= _RENEW_SINCE
    outcomes: dict[TopicPartition, Outcome] = {}
    empty: list[TopicPartition] = []
    calls: list[_Call] = []
    async for named, batches in ctx.paced(parts.items()):
        runs, partition = acknowledged(batches, may_renew=may_renew), topics.partition(named)
        if isinstance(partition, int):
            is_known = partition != UNKNOWN_TOPIC_ID
            outcomes[named] = Outcome(INVALID_REQUEST if runs is None and is_known else partition)
        elif runs is None:
            outcomes[named] = Outcome(INVALID_REQUEST)
        elif runs:
            calls.append(_Call(named, partition, runs))
        else:
            empty.append(named)
    if not calls:
        return outcomes
    found = await ctx.gathered(calls, partial(_acknowledge, ctx, member, limits_of(ctx.frontend, member.group_id)))
    outcomes.update((call.named, outcome) for call, outcome in zip(calls, found, strict=True))
    return outcomes | dict.fromkeys(empty, Outcome(0))


async def _acknowledge(ctx: Context, member: Member, limits: Limits, call: _Call) -> Outcome:
    is_renewed = any(run.type == AcknowledgeType.RENEW for run in call.runs)
    if is_renewed and not _renews(ctx.frontend, member.group_id):
        return Outcome(INVALID_RECORD_STATE)
    shares = ctx.frontend.groups.share_partitions
    try:
        return Outcome(await shares.acknowledge(call.partition, *member, call.runs, limits))
    except KorvetError as error:
        return failed(error)


def failed(error: KorvetError) -> Outcome:
    """The outcome of acknowledgements whose call failed."""
    message = failure_message(error)
    return Outcome(failure_code(error, "share_acknowledge"), message)


def _renews(frontend: Frontend, group_id: str) -> bool:
    return frontend.catalog.group_setting(group_id, _RENEWS) == "true"


def end(frontend: Frontend, session: ShareSession) -> None:
    """End a session, and have what its member acquired by its connection released."""
    frontend.share_sessions.close(session)
    member = Member.of(session)
    topic_by_id, partitions = frontend.catalog.topic_by_id, list[Partition]()
    for id, index in session.holds:
        if (topic := topic_by_id(id)) is not None and index < topic.partitions:
            partitions.append(frontend.log.partition(topic, index))
    if partitions:
        frontend.deliveries.release_later(*member, limits_of(frontend, member.group_id), partitions)
