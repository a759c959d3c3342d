"""The way of commands whose cluster slot is being moved, so that none overtakes another.

Where a node answers MOVED, ASK or TRYAGAIN, what was sent behind that command is answered so too or is done, and what
comes meanwhile must wait. So a slot's commands of one purpose take a detour: when the node has answered all that it was
sent, the refused ones and then the later ones are sent one at a time, each after the one before it was answered. When
nothing waits any more, the detour ends.

- MOVED: the slot has another owner. What was refused was not applied.
- ASK: the owner has none of the keys, and where the slot goes they may be; the next command is for the owner again.
- TRYAGAIN: some keys are here and some are there, or a function needs a key that was never made. That lasts as long as
  the slot is open, which is milliseconds to seconds: it is tried for `PATIENCE_S`, and then all that waits fails.
- A function that derives a key which has left is refused as "non local key", before its first write or where it may
  be repeated.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from typing import Any, Protocol

import anyio

from korvet.errors import KorvetError, SlotMoving, StoreUnavailable
from korvet.store.address import Address
from korvet.store.link import Link, fail
from korvet.store.refusals import is_open_slot, redirection
from korvet.store.resp import Placed, Sent

PATIENCE_S = 5.0
_PAUSE_S = (0.002, 0.1)


class Routes(Protocol):
    """What a detour asks of the store, for its own slot and purpose."""

    def owner(self) -> Link | None:
        """The link to the node that owns the slot."""

    def link_to(self, address: Address) -> Link:
        """The link to any node."""

    def moved(self, address: Address) -> None:
        """The slot has this owner now."""

    def opened(self) -> None:
        """The slot's keys are on their way."""


class Detour:
    """The waiting commands of one slot and purpose. `run` is to be run until it returns.

    :param sends_cancelled: a command is sent although nobody waits for its reply any more, as it would have been
        without the detour: an append, which those behind it follow.
    """

    def __init__(self, routes: Routes, barriers: Iterable[asyncio.Future[Any]], *, sends_cancelled: bool) -> None:
        self._routes = routes
        self._barriers = list(barriers)
        self._sends_cancelled = sends_cancelled
        self._refused: deque[Sent] = deque()
        self._held: deque[Sent] = deque()
        self._loop = asyncio.get_running_loop()
        self.probe: asyncio.Future[Any] | None = None
        """The reply that is waited for; a refusal of it is for the detour alone."""

    def refused(self, sent: Sent) -> None:
        """Take a command that was refused, in the order of the refusals."""
        self._refused.append(sent)

    def hold(self, sent: Sent) -> None:
        """Take a new command."""
        self._held.append(sent)

    async def run(self) -> None:
        """Send everything, in order, until nothing waits or one could not be sent."""
        for barrier in self._barriers:
            await asyncio.wait((barrier,))
        while self._refused or self._held:
            sent = self._refused.popleft() if self._refused else self._held.popleft()
            if not await self._deliver(sent):
                return

    def close(self) -> None:
        """Fail what is left; nothing may be added any more."""
        for future, _, _ in (*self._refused, *self._held):
            fail(future, SlotMoving("a command ahead of this one could not be sent"))

    async def _deliver(self, sent: Sent) -> bool:
        """Send one command until it is answered; false where those behind it must not be sent."""
        future, command, _ = sent
        assert future is not None
        deadline, pause_s = self._loop.time() + PATIENCE_S, _PAUSE_S[0]
        asked: Link | None = None
        link: Link | None = None
        try:
            while not future.done() or (self._sends_cancelled and future.cancelled()):
                try:
                    link = asked or self._routes.owner()
                    reply = await self._try(link, command, is_asked=asked is not None)
                except SlotMoving as error:
                    was_asked, asked = asked is not None, self._redirect(str(error), link)
                    # What is placed would be at a new key, and no open slot takes one together with others.
                    is_hopeless = isinstance(command, Placed) and is_open_slot(str(error))
                    if is_hopeless or self._loop.time() > deadline:
                        fail(future, error)
                        return is_hopeless
                    if asked is None or was_asked:
                        await anyio.sleep(pause_s)
                        pause_s = min(pause_s * 2, _PAUSE_S[1])
                except KorvetError as error:
                    fail(future, error)
                    return not isinstance(error, StoreUnavailable)
                else:
                    if not future.done():
                        future.set_result(reply)
                    return True
        finally:
            fail(future, StoreUnavailable("the store was closed", outcome_unknown=True))
        return True

    async def _try(self, link: Link | None, command: bytes | Placed, *, is_asked: bool) -> Any:
        if link is None or not (link.is_up or link.run_id):
            raise SlotMoving("the node that has the slot is not connected yet")
        self.probe = self._loop.create_future()
        try:
            if is_asked:
                link.send_asking((self.probe, command, 0))
            else:
                link.resend((self.probe, command, 0))
            return await self.probe
        finally:
            self.probe = None

    def _redirect(self, text: str, refuser: Link | None) -> Link | None:
        """Note what a refusal says; the link to ask, where it is an ASK."""
        target = redirection(text, None if refuser is None else refuser.address)
        if is_open_slot(text):
            self._routes.opened()
            return None if target is None else self._routes.link_to(target[1])
        if target is not None:
            self._routes.moved(target[1])
        return None
