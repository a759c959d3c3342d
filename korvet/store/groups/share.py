"""Share groups (KIP-932): the heartbeats of their members.

A member's target is computed as a consumer group's is (`korvet.store.groups.consumer`), by the simple assignor.

Sources: KIP-932, GroupMetadataManager.shareGroupHeartbeat.
"""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import replace
from typing import Final

from korvet.codes import INVALID_REQUEST
from korvet.errors import StoreUnavailable
from korvet.store.catalog.catalog import Catalog
from korvet.store.groups.call import GroupCalls
from korvet.store.groups.consumer import (
    CALLS,
    MOST_NAMES,
    PATIENT_CALLS,
    READY,
    TOO_MANY_NAMES,
    ConsumerGroups,
    heartbeaten,
)
from korvet.store.groups.consumer_types import Heartbeaten, ShareHeartbeatRequest

SESSION_TIMEOUT: Final = "share.session.timeout.ms"
HEARTBEAT_INTERVAL: Final = "share.heartbeat.interval.ms"


class ShareGroups:
    """The share groups of one namespace."""

    def __init__(self, calls: GroupCalls, catalog: Catalog, consumers: ConsumerGroups) -> None:
        self._calls = calls
        self._catalog = catalog
        self._consumers = consumers

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
            await self._consumers.follow_catalog(request.group_id)
        raise StoreUnavailable("the group changes again and again", outcome_unknown=True)
