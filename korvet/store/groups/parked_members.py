"""Parked members wait here. A front-end polls Redis for all members of one group's round together.

It polls when the group's channel has a message, and at the time in the last reply. The task of one parked member polls
for all. When that member is answered or cancelled, the next one continues. So the members need no other task, and a
round ends with its last member. Polling for a member also keeps its session. A member without a connection is not
polled, so its session expires.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import anyio

from korvet.redis.wakeup import Listening, Wakeups

Member = tuple[str, str]
"""A member id, and its instance id or ''."""
Asking = Callable[[Sequence[Member]], Awaitable[Sequence[Any]]]
"""The call that polls Redis: a reply for each member."""

_AT_ONCE: Final = 200
"""The most members of one call, which blocks Redis."""


class _Parked:
    """A parked member, and its answer or error."""

    __slots__ = ("called", "due_s", "error", "is_done", "member", "reply")

    def __init__(self, member: Member, reply: Any) -> None:
        self.member = member
        self.reply = reply
        self.error: Exception | None = None
        self.is_done = False
        self.due_s: float | None = None
        """The loop's time of its next poll; None before the first."""
        self.called = asyncio.Event()

    def release(self) -> None:
        self.is_done = True
        self.called.set()


class _Round:
    """Members that wait for the same answers. A reply has its status at ``status_at``, followed by the wait."""

    def __init__(self, wakeups: Wakeups, channel: str, status_at: int, ask: Asking) -> None:
        self._wakeups = wakeups
        self._channel = channel
        self._status_at = status_at
        self._ask = ask
        self._parked: dict[_Parked, None] = {}
        self._asker: _Parked | None = None
        self._listening: Listening | None = None

    @property
    def is_empty(self) -> bool:
        return not self._parked

    async def wait(self, one: _Parked, draining: anyio.Event) -> None:
        self._parked[one] = None
        if self._asker is None:
            self._asker = one
        elif self._listening is not None:
            self._listening.wake()
        try:
            while not one.is_done:
                if self._asker is one:
                    await self._serve(one, draining)
                else:
                    await one.called.wait()
                    one.called.clear()
        finally:
            self._parked.pop(one, None)
            if self._asker is one:
                self._asker = next(iter(self._parked), None)
                if self._asker is not None:
                    self._asker.called.set()

    async def _serve(self, asker: _Parked, draining: anyio.Event) -> None:
        """Poll for all members until the polling caller has its answer."""
        with self._wakeups.listen([self._channel]) as listening:
            self._listening = listening
            try:
                await listening.ready()
                polled: Sequence[_Parked] = list(self._parked)
                while not asker.is_done:
                    await self._ask_for(polled)
                    if not asker.is_done and not draining.is_set():
                        moved = await listening.wait(self._patience_s())
                        polled = self._due() if moved == {""} else list(self._parked)
                    if draining.is_set():
                        self._release(list(self._parked))
            finally:
                self._listening = None

    def _patience_s(self) -> float:
        """Seconds until the next poll."""
        now_s = asyncio.get_running_loop().time()
        return max(min(one.due_s or 0.0 for one in self._parked) - now_s, 0.0)

    def _due(self) -> Sequence[_Parked]:
        """The members due for a poll, and the new ones: a message may have preceded them."""
        now_s = asyncio.get_running_loop().time()
        return [one for one in self._parked if (one.due_s or 0.0) <= now_s]

    async def _ask_for(self, parked: Sequence[_Parked]) -> None:
        try:
            parts = [parked[at : at + _AT_ONCE] for at in range(0, len(parked), _AT_ONCE)]
            answers = await asyncio.gather(*(self._ask([one.member for one in part]) for part in parts))
        except Exception as error:
            for one in parked:
                one.error = error
            self._release(parked)
            return
        now_s = asyncio.get_running_loop().time()
        for one, reply in zip(parked, (reply for part in answers for reply in part), strict=True):
            one.reply = reply
            if is_parked(reply, self._status_at):
                one.due_s = now_s + reply[self._status_at + 1] / 1000
            else:
                self._release([one])

    def _release(self, parked: Sequence[_Parked]) -> None:
        for one in parked:
            self._parked.pop(one, None)
            one.release()


class ParkedMembers:
    """The parked members of one front-end's groups, by rounds."""

    def __init__(self, wakeups: Wakeups, status_at: int) -> None:
        self._wakeups = wakeups
        self._status_at = status_at
        self._rounds: dict[tuple[str, int], _Round] = {}

    async def wait(
        self, channel: str, number: int, member: Member, reply: Any, draining: anyio.Event, ask: Asking
    ) -> Any:
        """Wait for the answer of a member whose last reply is parked.

        :param number: the number of the answer's round in the group. One ``ask`` polls for all members of a channel
            and number.
        :returns: a reply that is not parked; at drain the last one.
        :raises KorvetError: ``ask`` raised it.
        """
        one = _Parked(member, reply)
        with self._round(channel, number, ask) as round_:
            await round_.wait(one, draining)
        if one.error is not None:
            raise one.error
        return one.reply

    @contextmanager
    def _round(self, channel: str, number: int, ask: Asking) -> Iterator[_Round]:
        key = (channel, number)
        round_ = self._rounds.get(key)
        if round_ is None:
            round_ = self._rounds[key] = _Round(self._wakeups, channel, self._status_at, ask)
        try:
            yield round_
        finally:
            if round_.is_empty and self._rounds.get(key) is round_:
                del self._rounds[key]


def is_parked(reply: Any, status_at: int) -> bool:
    """True if a reply's status is to wait; a refusal is too short to have a status."""
    return len(reply) > status_at and reply[status_at] == b"parked"
