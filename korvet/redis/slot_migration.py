"""The detour of commands while their cluster slot moves to another server; it keeps their order.

After a server answers MOVED, ASK or TRYAGAIN, it may refuse or serve the commands sent after that one, and new commands
must wait. So a slot's commands of one purpose take a detour. First the server answers everything in flight. Then the
detour sends the refused commands, then the later ones, each after the reply to the one before. It ends when no command
waits.

- MOVED: the slot has another owner. The refused command was not applied.
- ASK: the owner has none of the keys; the importing server may have them. The next command goes to the owner again.
- TRYAGAIN: each of the two servers has some of the keys, or a function needs a key that never existed. That lasts as
  long as the slot is open: milliseconds to seconds. The detour retries for `PATIENCE_S`; then all waiting commands
  fail.
- "non local key": a function derived a key that has moved. The function wrote nothing before, or is repeatable.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from typing import Any, Protocol

import anyio

from korvet.errors import KorvetError, SlotMoving, StoreUnavailable
from korvet.redis.address import Address
from korvet.redis.error_replies import is_open_slot, redirection
from korvet.redis.link import Link
from korvet.redis.resp import Placed, Sent, fail

PATIENCE_S = 5.0
_PAUSE_S = (0.002, 0.1)


class Routes(Protocol):
    """The part of the store that a detour needs, for its own slot and purpose."""

    def owner(self) -> Link | None:
        """The link to the server that owns the slot."""

    def link_to(self, address: Address) -> Link:
        """The link to any server."""

    def moved(self, address: Address) -> None:
        """Note the slot's new owner."""

    def opened(self) -> None:
        """Note that the slot's keys are moving."""


class Detour:
    """The waiting commands of one slot and purpose, which `run` sends.

    :param barriers: futures to await before the first command.
    :param sends_cancelled: true to send commands whose callers have gone, as without the detour: true for appends,
        because later appends build on them.
    """

    def __init__(self, routes: Routes, barriers: Iterable[asyncio.Future[Any]], *, sends_cancelled: bool) -> None:
        self._routes = routes
        self._barriers = list(barriers)
        self._sends_cancelled = sends_cancelled
        self._refused: deque[Sent] = deque()
        self._held: deque[Sent] = deque()
        self._loop = asyncio.get_running_loop()
        self.probe: asyncio.Future[Any] | None = None
        """The future of the command in flight; only the detour handles its refusal."""

    def refused(self, sent: Sent) -> None:
        """Add a refused command; call in the order of the refusals."""
        self._refused.append(sent)

    def hold(self, sent: Sent) -> None:
        """Add a new command."""
        self._held.append(sent)

    async def run(self) -> None:
        """Send all commands in order, until none waits or one cannot be sent."""
        for barrier in self._barriers:
            await asyncio.wait((barrier,))
        while self._refused or self._held:
            sent = self._refused.popleft() if self._refused else self._held.popleft()
            if not await self._deliver(sent):
                return

    def close(self) -> None:
        """Fail the remaining commands. Add none later."""
        for future, _, _ in (*self._refused, *self._held):
            fail(future, SlotMoving("a command ahead of this one could not be sent"))

    async def _deliver(self, sent: Sent) -> bool:
        """Send one command until it is answered; false if later commands must not be sent."""
        future, command, _ = sent
        assert future is not None
        deadline, pause_s = self._loop.time() + PATIENCE_S, _PAUSE_S[0]
        importing: Link | None = None
        link: Link | None = None
        try:
            while not future.done() or (self._sends_cancelled and future.cancelled()):
                try:
                    link = importing or self._routes.owner()
                    reply = await self._try(link, command, is_importing=importing is not None)
                except SlotMoving as error:
                    was_importing, importing = importing is not None, self._redirect(str(error), link)
                    # A placed batch needs a new key, and a moving slot accepts no call with new and old keys.
                    is_hopeless = isinstance(command, Placed) and is_open_slot(str(error))
                    if is_hopeless or self._loop.time() > deadline:
                        fail(future, error)
                        return is_hopeless
                    if importing is None or was_importing:
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

    async def _try(self, link: Link | None, command: bytes | Placed, *, is_importing: bool) -> Any:
        if link is None or not (link.is_up or link.run_id):
            raise SlotMoving("the node that has the slot is not connected yet")
        self.probe = self._loop.create_future()
        try:
            if is_importing:
                link.send_asking((self.probe, command, 0))
            else:
                link.resend((self.probe, command, 0))
            return await self.probe
        finally:
            self.probe = None

    def _redirect(self, text: str, refuser: Link | None) -> Link | None:
        """Handle a refusal; returns the next link if it is an ASK."""
        target = redirection(text, None if refuser is None else refuser.address)
        if is_open_slot(text):
            self._routes.opened()
            return None if target is None else self._routes.link_to(target[1])
        if target is not None:
            self._routes.moved(target[1])
        return None
