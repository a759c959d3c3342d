"""Groups of the consumer protocol (KIP-848): heartbeats, and the targets that front-ends compute for them.

Redis reconciles members step by step. A front-end only computes a new target from a snapshot. It looks up the
subscribed topics in the catalog, runs an assignor, and installs the result. Redis accepts it unless another target was
installed meanwhile. A heartbeat that finds a target due computes one first, and is then repeated.

Sources: KIP-848, GroupMetadataManager.consumerGroupHeartbeat, TargetAssignmentBuilder.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final
from uuid import uuid4

import anyio

from korvet.assignors import ASSIGNORS, SIMPLE, Assignment, Assignor, GroupSpec, MemberSpec, changed, preferred
from korvet.codes import GROUP_ID_NOT_FOUND, INVALID_REQUEST
from korvet.configs.types import split
from korvet.errors import StoreError, StoreUnavailable
from korvet.redis.reply import in_task
from korvet.store.catalog.catalog import Catalog
from korvet.store.groups import replies
from korvet.store.groups.call import GroupCalls
from korvet.store.groups.consumer_types import (
    Heartbeaten,
    HeartbeatRequest,
    Snapshot,
    Subscriber,
    assignment_text,
    parse_assignment,
)
from korvet.store.groups.offsets import retention_ms
from korvet.store.groups.replies import SHARE
from korvet.store.groups.subscriptions import Subscribed, Subscriptions
from korvet.store.threads import FairThreads

Prepare = Callable[[str, Snapshot, Subscribed], Awaitable[None]]
SESSION_TIMEOUT: Final = "consumer.session.timeout.ms"
HEARTBEAT_INTERVAL: Final = "consumer.heartbeat.interval.ms"
READY: Final = b"ready"
_TOPICS: Final = b"topics"
MOST_NAMES: Final = 10_000
"""The most topics to which a member subscribes by name."""
TOO_MANY_NAMES: Final = f"A member subscribes to at most {MOST_NAMES} topics by their names."
CALLS: Final = 8
"""The most calls for one heartbeat. The last ones accept the current target, so that a storm of joins ends."""
PATIENT_CALLS: Final = 4
_SMALL: Final = 500
"""The largest group, in members and partitions, whose target the loop itself computes, in some milliseconds."""


class ConsumerGroups:
    """The groups of one namespace, for members that speak the consumer protocol."""

    def __init__(self, calls: GroupCalls, catalog: Catalog) -> None:
        self._calls = calls
        self._catalog = catalog
        self._subscriptions = Subscriptions(catalog)
        self._target_requests: dict[str, _TargetRequests] = {}
        self._computing = FairThreads(1, 1)

    def assignors(self) -> tuple[str, ...]:
        """The assignors that members may choose; the first one is the default."""
        return split(self._catalog.setting(None, "group.consumer.assignors"))

    def assignor_of(self, wanted: Iterable[str | None]) -> str:
        """The assignor that most members prefer, else the default."""
        names = [name for name in wanted if name is not None]
        return preferred(names) if names else self.assignors()[0]

    def heartbeat_interval_ms(self, group_id: str) -> int:
        """The heartbeat interval of a group's members."""
        return int(self._catalog.group_setting(group_id, HEARTBEAT_INTERVAL))

    def beat(self, group_id: str, member_id: str, member_epoch: int, instance_id: str | None) -> Awaitable[int]:
        """Answer a heartbeat without changes. Returns 1 if there is no news, 0 if `heartbeat` must answer.

        :raises StoreUnavailable, StoreFull, StoreError:
        """
        return self._calls.call(
            "korvet_group_beat",
            group_id,
            catalog_version=self._catalog.topics_digest,
            member_id=member_id,
            member_epoch=member_epoch,
            instance_id=instance_id or "",
            session_timeout=self._catalog.group_setting(group_id, SESSION_TIMEOUT),
        )

    async def heartbeat(self, request: HeartbeatRequest) -> Heartbeaten:
        """Join, stay in or leave a group. The answer has the member's assignment if it is new.

        :raises StoreUnavailable, StoreFull, StoreError:
        """
        member_id = request.member_id
        if request.names is not None:
            request = replace(request, names=list(dict.fromkeys(request.names)))
            if len(request.names or ()) > MOST_NAMES:
                return Heartbeaten(code=INVALID_REQUEST, member_id=member_id, message=TOO_MANY_NAMES)
        if not member_id and request.member_epoch == 0:
            member_id = str(uuid4())
        topics = b""
        for call in range(CALLS):
            reply = await self._consume(request, member_id, topics, answers_anyway=call >= PATIENT_CALLS)
            if reply[0] != 0 or reply[2] == READY:
                return heartbeaten(reply, request.group_id)
            if reply[2] == _TOPICS:
                await self._catalog.refresh()
                topics = self._subscriptions.lines_of(reply[3:])
            else:
                await self.follow_catalog(request.group_id)
        raise StoreUnavailable("the group changes again and again", outcome_unknown=True)

    def _consume(
        self, request: HeartbeatRequest, member_id: str, topics: bytes, *, answers_anyway: bool
    ) -> Awaitable[Any]:
        setting = self._catalog.setting
        return self._calls.call(
            "korvet_group_consumer_heartbeat",
            request.group_id,
            # A leaving client does not wait for the answer. A late claim of owned partitions may end a revocation.
            is_awaited=request.owned is not None,
            catalog_version=self._catalog.topics_digest,
            member_id=member_id,
            member_epoch=request.member_epoch,
            instance_id=request.instance_id or "",
            rack=request.rack or "",
            assignor=request.assignor or "",
            regex=request.regex or "",
            has_regex=int(request.regex is not None),
            has_names=int(request.names is not None),
            owned="" if request.owned is None else assignment_text(request.owned),
            has_owned=int(request.owned is not None),
            rebalance_timeout=request.rebalance_timeout_ms,
            session_timeout=self._catalog.group_setting(request.group_id, SESSION_TIMEOUT),
            client_id=request.client_id,
            client_host=request.client_host,
            version=request.version,
            max_size=setting(None, "group.consumer.max.size"),
            retention=retention_ms(self._catalog),
            policy=setting(None, "group.consumer.migration.policy"),
            answers_anyway=int(answers_anyway),
            topics=topics,
            names=request.names or (),
        )

    async def fetch_refusal(self, group_id: str, member_id: str | None, member_epoch: int) -> int:
        """The code for a member that reads its group's offsets in an epoch."""
        code: int = await self._calls.call(
            "korvet_group_check_fetch", group_id, member_id=member_id or "", member_epoch=member_epoch
        )
        return code

    # ------------------------------------------------------------------ targets

    async def follow_catalog(self, group_id: str, prepare: Prepare | None = None) -> None:
        """Read the catalog and, if unchanged, make a target from it. The caller then retries.

        :param prepare: is awaited before a target is installed, with the snapshot and the topics.
        :raises StoreUnavailable, StoreFull, StoreError:
        """
        known = self._catalog.topics_digest
        await self._catalog.refresh()
        if known == self._catalog.topics_digest:
            await self.bring_up_to_date(group_id, prepare)

    async def bring_up_to_date(self, group_id: str, prepare: Prepare | None = None) -> None:
        """Make a target for the group's current state, once for all heartbeats that request it meanwhile.

        One of the requesting tasks makes it, and the next one if that task is cancelled; so no other task is needed.
        Another front-end may be faster, which is as good.

        :raises StoreUnavailable, StoreFull, StoreError:
        """
        await in_task()
        turns = self._target_requests.setdefault(group_id, _TargetRequests())
        begun_before = turns.begun
        turns.requesting += 1
        try:
            async with turns.lock:
                # A turn that began before this task's request may have missed the change that caused the request.
                if turns.done <= begun_before:
                    turns.begun = begun = turns.begun + 1
                    try:
                        await self._make_target(group_id, prepare)
                    except StoreUnavailable:
                        # The other tasks learn of it from their own next calls, all at once.
                        turns.done = begun
                        raise
                    turns.done = begun
        finally:
            turns.requesting -= 1
            if not turns.requesting:
                del self._target_requests[group_id]

    async def _make_target(self, group_id: str, prepare: Prepare | None) -> None:
        snapshot = await self._snapshot(group_id)
        if snapshot is None:
            return
        if snapshot.catalog_version != self._catalog.topics_digest:
            # The front-end that recorded the version may know more topics, and these must not be lost again.
            await self._catalog.refresh()
        await self._match(group_id, snapshot)
        digest = self._catalog.topics_digest
        subscribed = self._subscriptions.resolved((one.id, one.names, one.regex) for one in snapshot.members)
        assignor = (
            SIMPLE if snapshot.type == SHARE else ASSIGNORS[self.assignor_of(one.assignor for one in snapshot.members)]
        )
        targets: Mapping[str, Assignment] = {}
        if snapshot.target_epoch < snapshot.epoch or snapshot.topics != subscribed.text:
            compute = partial(targets_of, snapshot, subscribed, assignor)
            if len(snapshot.members) + sum(subscribed.partitions.values()) <= _SMALL:
                targets = compute()
            else:
                targets = await self._computing.run(group_id, compute)
        if prepare is not None:
            await prepare(group_id, snapshot, subscribed)
        await self._calls.call(
            "korvet_group_assign",
            group_id,
            generation=snapshot.epoch,
            target_epoch=snapshot.target_epoch,
            catalog_version=digest,
            topics=subscribed.text,
            assignor=assignor.name,
            targets=[part for member, target in targets.items() for part in (member, assignment_text(target))],
        )

    async def _match(self, group_id: str, snapshot: Snapshot) -> None:
        """Match regular expressions on names in a thread: some take milliseconds for each name."""
        regexes = {one.regex for one in snapshot.members if one.regex}
        if self._subscriptions.untried(regexes):
            await self._computing.run(group_id, partial(self._subscriptions.match, regexes))

    async def _snapshot(self, group_id: str) -> Snapshot | None:
        """The state of a group for a new target; None if it is no longer a group of this protocol.

        Redis returns a large group in pages, and the group may change between them. The epoch is the first page's, so
        another target follows this one. Redis refuses this one if another was installed meanwhile.
        """
        first = page = await self._page(group_id, b"0")
        members: dict[str, Subscriber] = {}
        while first is not None and page is not None:
            subscribers = map(_subscriber, page["members"])
            members |= {one.id: one for one in subscribers}
            if page["cursor"] == b"0":
                return Snapshot(
                    id=replies.text(first["id"]),
                    type=replies.text(first["type"]),
                    epoch=first["generation"],
                    target_epoch=first["target_epoch"],
                    catalog_version=replies.text(first["catalog_version"]),
                    topics=replies.text(first["topics"]),
                    members=[members[id] for id in sorted(members)],
                )
            page = await self._page(group_id, page["cursor"])
        return None

    async def _page(self, group_id: str, cursor: bytes) -> Mapping[str, Any] | None:
        reply = await self._calls.call("korvet_group_snapshot", group_id, cursor=cursor)
        if reply[0] == GROUP_ID_NOT_FOUND:
            return None
        if reply[0] != 0:
            raise StoreError(f"the library answers {reply[0]} for the snapshot of a group")
        return replies.named(reply)


@dataclass(slots=True)
class _TargetRequests:
    """The requests for one group's target: the number of tasks, and the numbers of the last turns begun and done."""

    lock: anyio.Lock = field(default_factory=anyio.Lock)
    requesting: int = 0
    begun: int = 0
    done: int = 0


def targets_of(snapshot: Snapshot, subscribed: Subscribed, assignor: Assignor) -> Mapping[str, Assignment]:
    """The targets of members that differ from their former ones."""
    members = {
        one.id: MemberSpec(
            id=one.id,
            instance_id=one.instance_id,
            rack=one.rack,
            topics=subscribed.members[one.id],
            current=parse_assignment(one.target),
        )
        for one in snapshot.members
    }
    spec = GroupSpec(members=members, partitions=subscribed.partitions)
    return changed(spec, assignor.assign(spec))


def heartbeaten(reply: Any, group_id: str) -> Heartbeaten:
    """The answer in the reply of a heartbeat to a group of the consumer protocol, or to a share group."""
    code, member_id = reply[0], replies.text(reply[1])
    if code != 0:
        why = replies.text(reply[2]).replace("{group}", group_id)
        return Heartbeaten(code=code, member_id=member_id, message=why or None)
    _, _, _, epoch, has_assignment, assignment = reply
    return Heartbeaten(
        code=0,
        member_id=member_id,
        member_epoch=epoch,
        assignment=parse_assignment(replies.text(assignment)) if has_assignment else None,
    )


def _subscriber(member: Any) -> Subscriber:
    of = replies.named((0, *member))
    return Subscriber(
        id=replies.text(of["member_id"]),
        instance_id=replies.text(of["instance_id"]) or None,
        rack=replies.text(of["rack"]) or None,
        assignor=replies.text(of["assignor"]) or None,
        names=[replies.text(name) for name in of["topics"]],
        regex=replies.text(of["regex"]),
        target=replies.text(of["target"]),
    )
