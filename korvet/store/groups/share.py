"""Share groups (KIP-932): the heartbeats of their members, and the topics in which they have share partitions.

A member's target is computed as a consumer group's is (`korvet.store.groups.consumer`), by the simple assignor. Before
it is installed, the group notes its topics, and the share partitions of these begin. So no member is assigned a
partition without its share partition, and all share partitions of a group are found when it is deleted.

Sources: KIP-932, GroupMetadataManager.shareGroupHeartbeat.
"""

from __future__ import annotations

from collections.abc import Awaitable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Final, NamedTuple

from korvet.codes import GROUP_ID_NOT_FOUND, INVALID_REQUEST, NON_EMPTY_GROUP
from korvet.errors import KorvetError, StoreUnavailable
from korvet.store.catalog.catalog import Catalog
from korvet.store.catalog.topic import Topic
from korvet.store.groups import replies
from korvet.store.groups.call import GroupCalls, chunks
from korvet.store.groups.consumer import (
    CALLS,
    MOST_NAMES,
    PATIENT_CALLS,
    READY,
    TOO_MANY_NAMES,
    ConsumerGroups,
    heartbeaten,
)
from korvet.store.groups.consumer_types import Heartbeaten, ShareHeartbeatRequest, Snapshot
from korvet.store.groups.subscriptions import Subscribed
from korvet.store.log.partitions.partitions import Partitions
from korvet.store.log.state.partition import Partition
from korvet.store.outcomes import settled
from korvet.store.shares.shares import Shares
from korvet.store.shares.types import SharePartition

SESSION_TIMEOUT: Final = "share.session.timeout.ms"
HEARTBEAT_INTERVAL: Final = "share.heartbeat.interval.ms"
_AT_ONCE: Final = 500
"""The topics of one call, and the share partitions of one round; more would delay other requests."""
_EMPTY: Final = "Empty"


class ShareTopics(NamedTuple):
    """A share group and its topics with share partitions: by name, each as `_line` has it."""

    group_uid: str
    state: str
    topics: Mapping[str, str]


class ShareGroups:
    """The share groups of one namespace."""

    def __init__(
        self, calls: GroupCalls, catalog: Catalog, log: Partitions, consumers: ConsumerGroups, shares: Shares
    ) -> None:
        self._calls = calls
        self._catalog = catalog
        self._log = log
        self._consumers = consumers
        self._shares = shares

    # ------------------------------------------------------------------ members

    def heartbeat_interval_ms(self, group_id: str) -> int:
        """The heartbeat interval of a group's members."""
        return int(self._catalog.group_setting(group_id, HEARTBEAT_INTERVAL))

    def beat(self, group_id: str, member_id: str, member_epoch: int) -> Awaitable[int]:
        """Answer a heartbeat without changes. Returns 1 if there is no news, 0 if `heartbeat` must answer.

        :raises StoreUnavailable, StoreFull, StoreError:
        """
        return self._calls.call(
            "korvet_group_beat",
            group_id,
            catalog_version=self._catalog.topics_digest,
            member_id=member_id,
            member_epoch=member_epoch,
            instance_id="",
            session_timeout=self._catalog.group_setting(group_id, SESSION_TIMEOUT),
            is_share=1,
        )

    async def heartbeat(self, request: ShareHeartbeatRequest) -> Heartbeaten:
        """Join, stay in or leave a group. The answer has the member's assignment if it is new.

        :raises StoreUnavailable, StoreFull, StoreError:
        """
        if request.names is not None:
            request = replace(request, names=list(dict.fromkeys(request.names)))
            if len(request.names or ()) > MOST_NAMES:
                return Heartbeaten(code=INVALID_REQUEST, member_id=request.member_id, message=TOO_MANY_NAMES)
        for call in range(CALLS):
            reply = await self._calls.call(
                "korvet_group_share_heartbeat",
                request.group_id,
                catalog_version=self._catalog.topics_digest,
                member_id=request.member_id,
                member_epoch=request.member_epoch,
                rack=request.rack or "",
                has_names=int(request.names is not None),
                session_timeout=self._catalog.group_setting(request.group_id, SESSION_TIMEOUT),
                client_id=request.client_id,
                client_host=request.client_host,
                max_size=self._catalog.setting(None, "group.share.max.size"),
                answers_anyway=int(call >= PATIENT_CALLS),
                names=request.names or (),
            )
            if reply[0] != 0 or reply[2] == READY:
                return heartbeaten(reply, request.group_id)
            await self._consumers.follow_catalog(request.group_id, self._begin)
        raise StoreUnavailable("the group changes again and again", outcome_unknown=True)

    async def _begin(self, group_id: str, snapshot: Snapshot, subscribed: Subscribed) -> None:
        """Begin the share partitions of topics that the last target did not have. May be repeated.

        :raises StoreUnavailable, StoreFull, StoreError:
        """
        had = set(snapshot.topics.splitlines())
        names = [line.split(" ", 1)[0] for line in subscribed.text.splitlines() if line not in had]
        topics = [topic for name in names if (topic := self._catalog.topic(name)) is not None]
        code, group_uid = await self._attach(group_id, "begin", topics)
        if code != 0:
            return
        for some in chunks(self.partitions(topics), _AT_ONCE):
            for outcome in await settled(self._shares.begin(one, group_id, group_uid) for one in some):
                if isinstance(outcome, KorvetError):
                    raise outcome

    async def _attach(self, group_id: str, mode: str, topics: Sequence[Topic]) -> tuple[int, str]:
        """Note topics with share partitions; the code, and the group's own id."""
        code, group_uid = 0, b""
        for some in chunks(topics, _AT_ONCE):
            flat = list(chain.from_iterable((topic.name, _line(topic)) for topic in some))
            code, group_uid = await self._calls.call("korvet_group_share_attach", group_id, mode=mode, topics=flat)
            if code != 0:
                break
        return code, group_uid.decode()

    # ------------------------------------------------------------------ administration

    async def topics(self, group_id: str) -> ShareTopics | None:
        """A group's topics with share partitions; None if it is no share group, or does not exist.

        :raises StoreUnavailable, StoreError:
        """
        found: dict[str, str] = {}
        cursor = b"0"
        while True:
            code, group_uid, state, cursor, flat = await self._calls.call(
                "korvet_group_share_topics", group_id, cursor=cursor
            )
            if code != 0:
                return None
            found |= zip(map(replies.text, flat[::2]), map(replies.text, flat[1::2]), strict=True)
            if cursor == b"0":
                return ShareTopics(replies.text(group_uid), replies.text(state), found)

    async def uid_of(self, group_id: str, partition: Partition) -> str:
        """The own id of a group that has begun a partition; empty if it has not, or does not exist.

        :raises StoreUnavailable, StoreError:
        """
        topic = partition.topic
        code, group_uid, *_, flat = await self._calls.call(
            "korvet_group_share_topics", group_id, cursor=b"0", topic=topic.name
        )
        has_begun = code == 0 and flat[1].startswith(partition.topic_id.encode())
        return replies.text(group_uid) if has_begun else ""

    async def describe(
        self, group_id: str, topics: Sequence[tuple[Topic, Sequence[int]]]
    ) -> Sequence[tuple[Partition, SharePartition | KorvetError | None]]:
        """Each of some partitions with its share partition without the ranges in flight, None if it has none, or the
        failure of its server."""
        partitions = [self._log.partition(topic, index) for topic, indexes in topics for index in indexes]
        described: list[SharePartition | KorvetError | None] = []
        for some in chunks(partitions, _AT_ONCE):
            described += await settled(
                self._shares.describe(partition, group_id, has_ranges=False) for partition in some
            )
        return list(zip(partitions, described, strict=True))

    async def move(
        self, group_id: str, offsets: Sequence[tuple[Topic, Mapping[int, int]]]
    ) -> int | Sequence[tuple[Partition, int | KorvetError]]:
        """Set the start offsets of share partitions of a group without members, which is made if it does not exist.

        :returns: a code for all, GROUP_ID_NOT_FOUND for another kind of group or NON_EMPTY_GROUP; else one for each
            partition, or the failure of its server. Repeatable.
        :raises StoreUnavailable, StoreFull, StoreError: the group's server fails.
        """
        topics = [topic for topic, _ in offsets]
        code, group_uid = await (self._attach(group_id, "move", topics) if topics else self._may_move(group_id))
        if code != 0:
            return code
        starts = [(self._log.partition(topic, index), start) for topic, of in offsets for index, start in of.items()]
        outcomes: list[int | KorvetError] = []
        for some in chunks(starts, _AT_ONCE):
            outcomes += await settled(self._shares.move(one, group_id, group_uid, start) for one, start in some)
        return [(one, outcome) for (one, _), outcome in zip(starts, outcomes, strict=True)]

    async def _may_move(self, group_id: str) -> tuple[int, str]:
        """The code of a `move` that names no topic, which makes no group."""
        found = await self.topics(group_id)
        if found is not None:
            return 0 if found.state == _EMPTY else NON_EMPTY_GROUP, found.group_uid
        (code, *_) = await self._calls.call("korvet_group_state", group_id)
        return GROUP_ID_NOT_FOUND if code == 0 else 0, ""

    async def forget(self, group_id: str, names: Collection[str] | None = None) -> int:
        """Delete the share partitions of a group without members in some of its topics, or in all. Repeatable.

        :returns: a code: GROUP_ID_NOT_FOUND if this is no share group, or NON_EMPTY_GROUP.
        :raises StoreUnavailable, StoreError:
        """
        found = await self.topics(group_id)
        if found is None:
            return GROUP_ID_NOT_FOUND
        if found.state != _EMPTY:
            return NON_EMPTY_GROUP
        lines = {name: line for name, line in found.topics.items() if names is None or name in names}
        if not lines:
            return 0
        if len(self.existing(lines)) < len(lines):
            # The cache of the catalog may lack a new topic.
            await self._catalog.refresh()
        # The next target begins the share partitions of all topics again, also if this is not carried out to its end.
        await self._calls.call("korvet_group_detach", group_id, partitions=())
        for some in chunks(self.partitions(self.existing(lines)), _AT_ONCE):
            for outcome in await settled(self._shares.delete(one, group_id, found.group_uid) for one in some):
                if isinstance(outcome, KorvetError):
                    raise outcome
        for some_lines in chunks(list(lines.items()), _AT_ONCE):
            await self._calls.call("korvet_group_detach", group_id, partitions=list(chain.from_iterable(some_lines)))
        return 0

    def existing(self, lines: Mapping[str, str]) -> Sequence[Topic]:
        """The topics of a group that were not deleted since, by the catalog as last read; ordered by name."""
        known = ((self._catalog.topic(name), line) for name, line in sorted(lines.items()))
        return [topic for topic, line in known if topic is not None and line.startswith(topic.id.hex)]

    def partitions(self, topics: Iterable[Topic]) -> Sequence[Partition]:
        """All partitions of topics."""
        return [self._log.partition(topic, index) for topic in topics for index in range(topic.partitions)]


def _line(topic: Topic) -> str:
    """A topic's id and its number of partitions."""
    return f"{topic.id.hex} {topic.partitions}"
