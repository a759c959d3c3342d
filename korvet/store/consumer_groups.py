"""Groups of the consumer protocol (KIP-848): heartbeats, and the targets that front-ends compute for them.

A step of the reconciliation is a function of its own; only a new target is made here, out of a snapshot: what members
subscribe to is resolved over the catalog, an assignor deals it out, and the result is installed where nobody installed
another one meanwhile. A heartbeat that finds that one is due has it made, and is called again.

Sources: KIP-848, GroupMetadataManager.consumerGroupHeartbeat, TargetAssignmentBuilder.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final
from uuid import uuid4

import anyio
from kio.schema.errors import ErrorCode

from korvet.errors import StoreError, StoreUnavailable
from korvet.store import group_replies as replies
from korvet.store.assignors import ASSIGNORS, Assignment, GroupSpec, MemberSpec, changed, preferred
from korvet.store.catalog import Catalog
from korvet.store.configs import split
from korvet.store.consumer_types import (
    Heartbeaten,
    HeartbeatRequest,
    Snapshot,
    Subscriber,
    assignment_text,
    parse_assignment,
)
from korvet.store.group_calls import GroupCalls
from korvet.store.subscriptions import Subscribed, Subscriptions

SESSION_TIMEOUT: Final = "consumer.session.timeout.ms"
HEARTBEAT_INTERVAL: Final = "consumer.heartbeat.interval.ms"
_NOT_FOUND: Final = int(ErrorCode.group_id_not_found)
_READY, _TOPICS = b"ready", b"topics"
_CALLS: Final = 8
"""Of one heartbeat. The last ones take the target as it is, so that a storm of joins keeps nobody from an answer."""
_PATIENT_CALLS: Final = 4
_SMALL: Final = 500
"""Members and partitions of a group whose target is computed on the loop, within some milliseconds."""
_MINUTE_MS: Final = 60_000


class ConsumerGroups:
    """The groups of one namespace as those know them who speak the consumer protocol."""

    def __init__(self, calls: GroupCalls, catalog: Catalog) -> None:
        self._calls = calls
        self._catalog = catalog
        self._subscriptions = Subscriptions(catalog)
        self._turns: dict[str, _Turns] = {}
        self._computing = anyio.CapacityLimiter(1)

    def assignors(self) -> tuple[str, ...]:
        """The assignors that members may ask for; the first one is the default."""
        return split(self._catalog.setting(None, "group.consumer.assignors"))

    def assignor_of(self, asked: Iterable[str | None]) -> str:
        """The one that most members ask for, else the default."""
        names = [name for name in asked if name is not None]
        return preferred(names) if names else self.assignors()[0]

    def heartbeat_interval_ms(self, group_id: str) -> int:
        """How often a group's members are to send heartbeats."""
        return int(self._catalog.group_setting(group_id, HEARTBEAT_INTERVAL))

    def beat(self, group_id: str, member_id: str, member_epoch: int, instance_id: str | None) -> Awaitable[int]:
        """A heartbeat that says nothing of its member; 0 where `heartbeat` has to answer it, else there is no news.

        :raises StoreUnavailable, StoreFull, StoreError:
        """
        session_timeout_ms = self._catalog.group_setting(group_id, SESSION_TIMEOUT)
        digest = self._catalog.topics_digest
        return self._calls.beat(group_id, digest, member_id, member_epoch, instance_id or "", session_timeout_ms)

    async def heartbeat(self, request: HeartbeatRequest) -> Heartbeaten:
        """Join, stay in or leave a group; what the member is to have, where that is news.

        :raises StoreUnavailable, StoreFull, StoreError:
        """
        member_id = request.member_id
        if not member_id and request.member_epoch == 0:
            member_id = str(uuid4())
        topics = b""
        for call in range(_CALLS):
            reply = await self._consume(request, member_id, topics, answers_anyway=call >= _PATIENT_CALLS)
            if reply[0] != 0 or reply[2] == _READY:
                return _heartbeaten(reply, request.group_id)
            if reply[2] == _TOPICS:
                await self._catalog.refresh()
                topics = self._subscriptions.lines_of(reply[3:])
            else:
                await self.follow_catalog(request.group_id)
        raise StoreUnavailable("the group changes again and again", outcome_unknown=True)

    def _consume(
        self, request: HeartbeatRequest, member_id: str, topics: bytes, *, answers_anyway: bool
    ) -> Awaitable[Any]:
        setting, group_id = self._catalog.setting, request.group_id
        keys = self._calls.keys(group_id)
        args: tuple[str | int | bytes, ...] = (
            self._catalog.topics_digest,
            member_id,
            request.member_epoch,
            request.instance_id or "",
            request.rack or "",
            request.assignor or "",
            request.regex or "",
            int(request.regex is not None),
            int(request.names is not None),
            "" if request.owned is None else assignment_text(request.owned),
            int(request.owned is not None),
            request.rebalance_timeout_ms,
            self._catalog.group_setting(group_id, SESSION_TIMEOUT),
            request.client_id,
            request.client_host,
            request.version,
            setting(None, "group.consumer.max.size"),
            int(setting(None, "offsets.retention.minutes")) * _MINUTE_MS,
            setting(None, "group.consumer.migration.policy"),
            int(answers_anyway),
            topics,
            *(request.names or ()),
        )

        # Who leaves does not wait for the answer; what somebody says that he owns may acknowledge a revocation.
        call = self._calls.timely if request.owned is None else self._calls.attended

        def consume(id: str, locator: str) -> Awaitable[Any]:
            return call(keys, "korvet_group_consume", id, locator, *args)

        return self._calls.index.making(group_id, consume)

    async def fetch_refusal(self, group_id: str, member_id: str | None, member_epoch: int) -> int:
        """The code for a member that wants to read its group's offsets in an epoch."""
        code: int = await self._calls.call("korvet_group_check_fetch", group_id, member_id or "", member_epoch)
        return code

    # ------------------------------------------------------------------ targets

    async def follow_catalog(self, group_id: str) -> None:
        """Have the catalog read and, where this changed nothing, a target made of it; the caller asks again.

        :raises StoreUnavailable, StoreFull, StoreError:
        """
        known = self._catalog.topics_digest
        await self._catalog.refresh()
        if known == self._catalog.topics_digest:
            await self.bring_up_to_date(group_id)

    async def bring_up_to_date(self, group_id: str) -> None:
        """Have a target made for what the group is now; one at a time, for all who ask meanwhile.

        One of those who ask does it, and where that one is cancelled, the next; so there is no task but their own.
        Somebody elsewhere may be quicker, which is as good.

        :raises StoreUnavailable, StoreFull, StoreError:
        """
        turns = self._turns.setdefault(group_id, _Turns())
        asked = turns.begun
        turns.asking += 1
        try:
            async with turns.lock:
                # Who began before this one asked may not have seen what this one knows of.
                if turns.done <= asked:
                    turns.begun = begun = turns.begun + 1
                    try:
                        await self._make_target(group_id)
                    except StoreUnavailable:
                        # Those who wait find out by their own next call, all at once.
                        turns.done = begun
                        raise
                    turns.done = begun
        finally:
            turns.asking -= 1
            if not turns.asking:
                del self._turns[group_id]

    async def _make_target(self, group_id: str) -> None:
        snapshot = await self._snapshot(group_id)
        if snapshot is None:
            return
        if snapshot.catalog_version != self._catalog.topics_digest:
            # Whoever noted that one may know of more; topics must not go back to what they were.
            await self._catalog.refresh()
        await self._match(snapshot)
        digest = self._catalog.topics_digest
        subscribed = self._subscriptions.resolved((one.id, one.names, one.regex) for one in snapshot.members)
        assignor = self.assignor_of(one.assignor for one in snapshot.members)
        targets: Mapping[str, Assignment] = {}
        if snapshot.target_epoch < snapshot.epoch or snapshot.topics != subscribed.text:
            compute = partial(targets_of, snapshot, subscribed, assignor)
            if len(snapshot.members) + sum(subscribed.partitions.values()) <= _SMALL:
                targets = compute()
            else:
                targets = await anyio.to_thread.run_sync(compute, limiter=self._computing)
        await self._calls.call(
            "korvet_group_assign",
            group_id,
            snapshot.epoch,
            snapshot.target_epoch,
            digest,
            subscribed.text,
            assignor,
            *(part for member, target in targets.items() for part in (member, assignment_text(target))),
        )

    async def _match(self, snapshot: Snapshot) -> None:
        """Have regular expressions tried on names in a thread: there are some that take milliseconds for each."""
        regexes = {one.regex for one in snapshot.members if one.regex}
        if self._subscriptions.untried(regexes):
            await anyio.to_thread.run_sync(self._subscriptions.match, regexes, limiter=self._computing)

    async def _snapshot(self, group_id: str) -> Snapshot | None:
        """None where there is no such group of this protocol any more."""
        reply = await self._calls.call("korvet_group_snapshot", group_id)
        if reply[0] == _NOT_FOUND:
            return None
        if reply[0] != 0:
            raise StoreError(f"the library answers {reply[0]} for the snapshot of a group")
        found = replies.named(reply)
        return Snapshot(
            epoch=found["generation"],
            target_epoch=found["target_epoch"],
            catalog_version=replies.text(found["catalog_version"]),
            topics=replies.text(found["topics"]),
            members=[_subscriber(told) for told in found["members"]],
        )


@dataclass(slots=True)
class _Turns:
    """Who wants the target of one group made, one after the other: how many, and which turns began and ended well."""

    lock: anyio.Lock = field(default_factory=anyio.Lock)
    asking: int = 0
    begun: int = 0
    done: int = 0


def targets_of(snapshot: Snapshot, subscribed: Subscribed, assignor: str) -> Mapping[str, Assignment]:
    """The new targets of members that are to have another one."""
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
    return changed(spec, ASSIGNORS[assignor].assign(spec))


def _heartbeaten(reply: Any, group_id: str) -> Heartbeaten:
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


def _subscriber(told: Any) -> Subscriber:
    of = replies.named((0, *told))
    return Subscriber(
        id=replies.text(of["member_id"]),
        instance_id=replies.text(of["instance_id"]) or None,
        rack=replies.text(of["rack"]) or None,
        assignor=replies.text(of["assignor"]) or None,
        names=[replies.text(name) for name in of["topics"]],
        regex=replies.text(of["regex"]),
        target=replies.text(of["target"]),
    )
