"""The primary that Sentinel names, for all links of a process. After a failover they all ask at once.

A question costs some milliseconds of the process's time. So one is asked at a time, and its answer is for all that came
before it was asked.
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
        """The number of questions so far."""
        self._answered = 0
        """The number of the last question that has an answer."""
        self._answer: Address | StoreUnavailable = StoreUnavailable("no sentinel was asked yet")

    async def find(self) -> Address:
        """The address that the sentinels name after this call began.

        :raises StoreUnavailable: if no sentinel answers, or none knows the service.
        """
        before = self._begun
        async with self._lock:
            # A question that was cut off has no answer, so the next caller asks.
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
