"""The clients of a namespace, and longer rests of its background work while it has none.

A namespace is idle if no front-end has a client's connection, nor had one in the last minute. Its registry tells
(`korvet.store.registry`). A front-end that has a client makes it active, and all others hear of that at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from math import inf
from typing import Final

import anyio

_LATELY_S: Final = 10.0
"""A client that left counts for so long, because it may have come and left between two renewals."""
IDLE_S: Final = 600.0
"""The usual rest of background work in an idle namespace."""


def _nobody() -> None:
    """Do nothing, because no registry is kept."""


class Activity:
    """The clients of one namespace as one front-end sees them. The namespace is active until `note` says otherwise."""

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
        """Whether this front-end has a client's connection, or had one a moment ago."""
        return self._clients > 0 or asyncio.get_running_loop().time() - self._left_at < _LATELY_S

    @property
    def is_idle(self) -> bool:
        """Whether no front-end has clients, as last heard."""
        return not self._active.is_set()

    def note(self, *, is_idle: bool) -> None:
        """Note whether the registry says that the namespace is idle."""
        if not is_idle:
            self._active.set()
        elif self._active.is_set():
            self._active = anyio.Event()

    async def sleep(self, seconds: float, idle_s: float = IDLE_S) -> None:
        """Sleep, and in an idle namespace sleep on until it is active, or until so much time passed in all."""
        await anyio.sleep(seconds)
        if idle_s > seconds:
            with anyio.move_on_after(idle_s - seconds):
                await self._active.wait()
