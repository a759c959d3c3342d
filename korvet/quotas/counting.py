"""Connection counts of all front-ends together: each reports its own through Redis.

A front-end that counts connections holds a lease in Redis. It reports the first change at once, then at most four times
a second. Without a change it only renews the lease. If it dies, its counts expire with the lease.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

import anyio
import structlog

from korvet.errors import KorvetError
from korvet.quotas.tally import Tally
from korvet.store.security.connections import LEASE_S, MOST_AT_ONCE, StoredConnections

log = structlog.get_logger()

_TELL_S: Final = 0.25
_CALLS_AT_ONCE: Final = 20
_RENEW_S: Final = LEASE_S / 3
_AGAIN_S: Final = 1200.0
"""Seconds after which all counts are reported again; in Redis they expire after an hour."""
_PATIENCE_S: Final = 3.0
_LEAVE_S: Final = 1.0


class Counting:
    """The tallies of a front-end; `publish` reports them to the others while it runs.

    :param front_ends: returns the last known number of front-ends.
    """

    def __init__(self, stored: StoredConnections, tallies: Sequence[Tally], front_ends: Callable[[], int]) -> None:
        self._stored = stored
        self._tallies = tallies
        self._front_ends = front_ends
        self._changed = asyncio.Event()
        self._has_published = False
        self._is_away = False
        """True if the last call had no answer. Then the next one reports no name: Redis may count a call without
        answering, and each name that it may have counted is kept until it has the final count."""
        for tally in tallies:
            tally.on_change = self._changed.set
        stored.on_loss(self._publish_all_again)

    async def publish(self) -> None:
        """Report own counts and read the others' until cancelled, then withdraw the own ones."""
        again_at = anyio.current_time() + _AGAIN_S
        try:
            while True:
                with anyio.move_on_after(_RENEW_S):
                    await self._changed.wait()
                self._changed.clear()
                if anyio.current_time() > again_at:
                    again_at = anyio.current_time() + _AGAIN_S
                    self._publish_all_again()
                for _ in range(_CALLS_AT_ONCE):
                    if not await self._publish():
                        break
                await anyio.sleep(_TELL_S)
        finally:
            with anyio.CancelScope(shield=True), anyio.move_on_after(_LEAVE_S), suppress(KorvetError):
                if self._has_published:
                    await self._stored.publish({}, lease_s=0)

    async def _publish(self) -> bool:
        """Report some changes; without any, renew the lease if counts depend on it.

        :returns: true if changes remain and another front-end reads them.
        """
        has_changes = any(tally.has_changes for tally in self._tallies)
        if not has_changes and not (self._has_published and any(tally.has_own for tally in self._tallies)):
            return False
        most = 0 if self._is_away else MOST_AT_ONCE // len(self._tallies)
        changes = {
            (tally.kind, name): (tally, count) for tally in self._tallies for name, count in tally.changes(most).items()
        }
        heard = None
        with suppress(KorvetError), anyio.move_on_after(_PATIENCE_S):
            heard = await self._stored.publish({counter: count for counter, (_, count) in changes.items()})
        self._is_away = heard is None
        self._note_parts(1 if heard is not None else max(1, self._front_ends()))
        for tally in self._tallies:
            published = {name: count for (kind, name), (_, count) in changes.items() if kind == tally.kind}
            if heard is None:
                tally.unheard(published)
            else:
                tally.heard({name: heard.others[tally.kind, name] for name in published})
        if heard is not None and not heard.had_lease and self._has_published:
            self._publish_all_again()
        self._has_published = self._has_published or heard is not None
        has_more = any(tally.has_changes for tally in self._tallies)
        if has_more:
            self._changed.set()
        return has_more and heard is not None

    def _publish_all_again(self) -> None:
        for tally in self._tallies:
            tally.note_all()

    def _note_parts(self, parts: int) -> None:
        for tally in self._tallies:
            if parts > 1 and tally.parts == 1:
                log.warning("redis cannot add up connections; limits are divided", kind=tally.kind, parts=parts)
            tally.parts = parts
