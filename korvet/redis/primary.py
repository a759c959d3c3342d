"""Sentinel's primary, for all links of a process. After a failover they all query it at once.

A query costs some milliseconds of CPU time. So one runs at a time, and its answer serves all callers from before its
start.
"""

from __future__ import annotations

import anyio

from korvet.errors import StoreUnavailable
from korvet.redis.address import Address, RedisUrl


class Primary:
    """The primary of one service."""

    def __init__(self, url: RedisUrl) -> None:
        self._url = url
        self._lock = anyio.Lock()
        self._begun = 0
        """The number of queries so far."""
        self._answered = 0
        """The number of the last answered query."""
        self._answer: Address | StoreUnavailable = StoreUnavailable("no sentinel has answered yet")

    async def find(self) -> Address:
        """The address that the sentinels name after this call began.

        :raises StoreUnavailable: no sentinel answers, or none knows the service.
        """
        before = self._begun
        async with self._lock:
            # A cancelled query has no answer, so the next caller runs one.
            if self._answered <= before:
                await self._ask()
            answer = self._answer
        if isinstance(answer, StoreUnavailable):
            raise StoreUnavailable(str(answer))
        return answer

    async def _ask(self) -> None:
        from korvet.redis.discovery import find_primary

        self._begun += 1
        try:
            self._answer = await find_primary(self._url)
        except StoreUnavailable as error:
            self._answer = error
        self._answered = self._begun
