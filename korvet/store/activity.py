"""The clients of a namespace, and longer pauses of its background work while it has none.

A namespace is idle if no front-end has had a client's connection in the last minute. Its registry reports this
(`korvet.store.registry`). A front-end with a client makes it active, and the others learn of that at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from math import inf
from typing import Final

import anyio

_LATELY_S: Final = 10.0
"""Seconds for which a client counts after it left: it may have come and left between two renewals."""
IDLE_S: Final = 600.0
"""The usual pause of background work in an idle namespace, in seconds."""


def _nobody() -> None:
    """Do nothing: there is no registry."""


class Activity:
    """The clients of one namespace at one front-end. The namespace is active until `note` makes it idle."""

    def __init__(self) -> None:
        self._clients = 0
        self._left_at = -inf
        self._active = anyio.Event()
        self._active.set()
        self.on_client: Callable[[], None] = _nobody
        """Called when a client comes to an idle namespace."""

    def came(self) -> None:
        """Note that a client connected."""
        self._clients += 1
        if self.is_idle:
            self.on_client()

    def left(self) -> None:
        """Note that a client's connection is gone."""
        self._clients -= 1
        self._left_at = asyncio.get_running_loop().time()

    @property
    def clients(self) -> int:
        """The clients' connections of this front-end."""
        return self._clients

    @property
    def has_clients(self) -> bool:
        """True if this front-end has, or recently had, a client's connection."""
        return self._clients > 0 or asyncio.get_running_loop().time() - self._left_at < _LATELY_S

    @property
    def is_idle(self) -> bool:
        """True if no front-end had clients at the last report."""
        return not self._active.is_set()

    def note(self, *, is_idle: bool) -> None:
        """Store the registry's report."""
        if not is_idle:
            self._active.set()
        elif self._active.is_set():
            self._active = anyio.Event()

    async def sleep(self, seconds: float, idle_s: float = IDLE_S) -> None:
        """Sleep; in an idle namespace sleep on until it is active, for at most ``idle_s`` in all."""
        await anyio.sleep(seconds)
        if idle_s > seconds:
            with anyio.move_on_after(idle_s - seconds):
                await self._active.wait()
