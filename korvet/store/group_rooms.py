"""Where parked members wait: those of one group at this front-end are asked for together.

Redis is asked when the group's channel moves, and when its last reply said to. One of those who wait does it for all;
where that one has its answer or is cancelled, the next takes its place. So there is no task but the members' own, and
a room is gone with its last guest. Asking is also what holds the members' sessions: one whose connection is gone is not
asked for, and is given up in time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import anyio

from korvet.store.wakeup import Listening, Wakeups

Member = tuple[str, str]
"""A member id, and its instance id or ''."""
Asking = Callable[[Sequence[Member]], Awaitable[Sequence[Any]]]
"""How Redis is asked: a reply for each member."""

_AT_ONCE: Final = 200
"""Members in one call, which nothing else at that Redis comes between."""


class _Guest:
    """One who waits, and what came of it."""

    __slots__ = ("called", "due_s", "error", "is_done", "member", "reply")

    def __init__(self, member: Member, reply: Any) -> None:
        self.member = member
        self.reply = reply
        self.error: Exception | None = None
        self.is_done = False
        self.due_s: float | None = None
        """When to ask for it again, by the loop's clock; None before it was asked for here."""
        self.called = anyio.Event()

    def release(self) -> None:
        self.is_done = True
        self.called.set()


class _Room:
    """Those who wait for the same answers. ``status_at`` is where a reply has its status, with the wait behind it."""

    def __init__(self, wakeups: Wakeups, channel: str, status_at: int, ask: Asking) -> None:
        self._wakeups = wakeups
        self._channel = channel
        self._status_at = status_at
        self._ask = ask
        self._guests: dict[_Guest, None] = {}
        self._host: _Guest | None = None
        self._listening: Listening | None = None

    @property
    def is_empty(self) -> bool:
        return not self._guests

    async def wait(self, guest: _Guest, draining: anyio.Event) -> None:
        self._guests[guest] = None
        if self._host is None:
            self._host = guest
        elif self._listening is not None:
            self._listening.wake()
        try:
            while not guest.is_done:
                if self._host is guest:
                    await self._serve(guest, draining)
                else:
                    await guest.called.wait()
                    guest.called = anyio.Event()
        finally:
            self._guests.pop(guest, None)
            if self._host is guest:
                self._host = next(iter(self._guests), None)
                if self._host is not None:
                    self._host.called.set()

    async def _serve(self, host: _Guest, draining: anyio.Event) -> None:
        """Ask for everybody until the host has its answer."""
        with self._wakeups.listen([self._channel]) as listening:
            self._listening = listening
            try:
                await listening.ready()
                asked: Sequence[_Guest] = list(self._guests)
                while not host.is_done:
                    await self._ask_for(asked)
                    if not host.is_done and not draining.is_set():
                        moved = await listening.wait(self._patience_s())
                        asked = self._due() if moved == {""} else list(self._guests)
                    if draining.is_set():
                        self._release(list(self._guests))
            finally:
                self._listening = None

    def _patience_s(self) -> float:
        """The time until somebody is to be asked for."""
        now_s = asyncio.get_running_loop().time()
        return max(min(guest.due_s or 0.0 for guest in self._guests) - now_s, 0.0)

    def _due(self) -> Sequence[_Guest]:
        """Those whose time has come, and those who are new, for the channel may have moved before they came here."""
        now_s = asyncio.get_running_loop().time()
        return [guest for guest in self._guests if (guest.due_s or 0.0) <= now_s]

    async def _ask_for(self, guests: Sequence[_Guest]) -> None:
        try:
            parts = [guests[at : at + _AT_ONCE] for at in range(0, len(guests), _AT_ONCE)]
            answers = await asyncio.gather(*(self._ask([guest.member for guest in part]) for part in parts))
        except Exception as error:
            for guest in guests:
                guest.error = error
            self._release(guests)
            return
        now_s = asyncio.get_running_loop().time()
        for guest, reply in zip(guests, (reply for part in answers for reply in part), strict=True):
            guest.reply = reply
            if is_parked(reply, self._status_at):
                guest.due_s = now_s + reply[self._status_at + 1] / 1000
            else:
                self._release([guest])

    def _release(self, guests: Sequence[_Guest]) -> None:
        for guest in guests:
            self._guests.pop(guest, None)
            guest.release()


class Rooms:
    """The rooms of one front-end, each for the parked members of one group that ask the same."""

    def __init__(self, wakeups: Wakeups, status_at: int) -> None:
        self._wakeups = wakeups
        self._status_at = status_at
        self._rooms: dict[tuple[str, int], _Room] = {}

    async def wait(
        self, channel: str, round_: int, member: Member, reply: Any, draining: anyio.Event, ask: Asking
    ) -> Any:
        """Wait for the answer of a member whose last reply is parked.

        :param round_: what the answer is of, beside the group, whose channel is given: who waits with the same of both
            is asked for by the same ``ask``.
        :returns: a reply that is not parked; at drain the last one.
        :raises KorvetError: what ``ask`` did.
        """
        guest = _Guest(member, reply)
        with self._room(channel, round_, ask) as room:
            await room.wait(guest, draining)
        if guest.error is not None:
            raise guest.error
        return guest.reply

    @contextmanager
    def _room(self, channel: str, round_: int, ask: Asking) -> Iterator[_Room]:
        place = (channel, round_)
        room = self._rooms.get(place)
        if room is None:
            room = self._rooms[place] = _Room(self._wakeups, channel, self._status_at, ask)
        try:
            yield room
        finally:
            if room.is_empty and self._rooms.get(place) is room:
                del self._rooms[place]


def is_parked(reply: Any, status_at: int) -> bool:
    """Whether a reply tells to wait; a refused one is too short to have a status."""
    return len(reply) > status_at and reply[status_at] == b"parked"
