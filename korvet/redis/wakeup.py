"""Wake-ups: a task that waits for a key's change sleeps on the key's channel (sharded pub/sub, named as the key).

A task listens, becomes ready, reads, and then waits: so it misses no change after its read. A lost subscriber
connection wakes all listeners, as does a subscription confirmed during the wait. No result depends on a wake-up: every
wait has a deadline.

A function's reply may reveal the message that Redis will publish. The caller can then register the message in advance
(`Wakeups.expect`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import count
from typing import Any

import anyio
import structlog

from korvet.errors import StoreRefusing
from korvet.redis.client import Store
from korvet.redis.error_replies import as_exception
from korvet.redis.link import Link
from korvet.redis.resp import ReplyError, pack_command

log = structlog.get_logger()

_LINGER_S = 60.0
_CONFIRM_S = 1.0
_BELIEVED_S = 2.0
"""Seconds for which a listener trusts a channel's silence in a cluster. While a slot moves, messages published at its
new server do not reach subscribers at the old one."""
_SPANS = 1 << 40
_MOST_EXPECTED = 100
"""The most messages that a channel expects in advance; further ones count when they arrive."""
_VOID = b"-1 "
"""The prefix of a message that makes readers read again, whatever they know."""
_moments = count(1)


class _Channel:
    """A subscription, kept from its first listener until `_LINGER_S` after the last one left."""

    __slots__ = ("confirmed", "expected", "idle_since", "latest", "link", "listeners", "name", "since")

    def __init__(self, name: str) -> None:
        self.name = name
        self.since = next(_moments)
        self.link: Link | None = None
        """The subscription's link."""
        self.confirmed = False
        self.latest: bytes | None = None
        self.expected: list[bytes] = []
        """Messages expected in advance, in order."""
        self.listeners: set[Listening] = set()
        self.idle_since = 0.0


class Listening:
    """A task's interest in some channels, for a ``with`` block."""

    def __init__(self, wakeups: Wakeups, channels: list[_Channel]) -> None:
        self._wakeups = wakeups
        self._channels = channels
        self._moved: set[str] = set()
        self._wake: asyncio.Future[None] | None = None
        self._is_over = False
        """True if `wait` has timed out."""
        self._futures: list[tuple[asyncio.Future[None], Callable[[object], None]]] = []

    def __enter__(self) -> Listening:
        for channel in self._channels:
            channel.listeners.add(self)
        return self

    def __exit__(self, *_: object) -> None:
        for future, note in self._futures:
            future.remove_done_callback(note)
        for channel in self._channels:
            channel.listeners.discard(self)
            if not channel.listeners:
                self._wakeups._left(channel)

    async def ready(self) -> None:
        """Return when all channels are confirmed, or after a second: a later confirmation is itself a wake-up."""
        if not self._is_confirmed():
            with anyio.move_on_after(_CONFIRM_S):
                while not self._is_confirmed():
                    await self._sleep()
        self._moved.clear()

    def _is_confirmed(self) -> bool:
        return all(channel.confirmed for channel in self._channels)

    async def wait(self, timeout_s: float) -> set[str]:
        """The channels with messages since the last call; empty at the timeout."""
        if not self._moved and timeout_s > 0:
            # A cancel scope would cost a waiting Fetch more than its read does.
            self._is_over = False
            timer = self._wakeups.loop.call_later(timeout_s, self._end)
            try:
                while not (self._moved or self._is_over):
                    await self._sleep()
            finally:
                timer.cancel()
        moved, self._moved = self._moved, set()
        return moved

    def add(self, channel: str, future: asyncio.Future[None]) -> None:
        """Take the end of a future for a message of a channel, for this task alone."""

        def note(_: object) -> None:
            self._note(channel)

        future.add_done_callback(note)
        self._futures.append((future, note))

    def wake(self) -> None:
        """Make `wait` return now, with '' among the channels."""
        self._note("")

    async def _sleep(self) -> None:
        self._wake = self._wakeups.loop.create_future()
        try:
            await self._wake
        finally:
            self._wake = None

    def _note(self, channel: str) -> None:
        self._moved.add(channel)
        self._rouse()

    def _end(self) -> None:
        self._is_over = True
        self._rouse()

    def _rouse(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)


class _Following(Listening):
    """Calls a function at each message, and wakes no task."""

    def __init__(self, wakeups: Wakeups, channels: list[_Channel], noted: Callable[[str], None]) -> None:
        super().__init__(wakeups, channels)
        self._noted = noted

    def _note(self, channel: str) -> None:
        self._noted(channel)


class Wakeups:
    """All subscriptions of one front-end, on its store's subscriber connections."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.loop = asyncio.get_running_loop()
        """Kept, because Python 3.11 makes a system call to look for it."""
        self._channels: dict[str, _Channel] = {}
        self._idle: dict[str, _Channel] = {}
        self._is_doubted = store.url.kind == "cluster"
        store.on_subscriber(self._attach)
        store.on_slots_moved(self._renew)

    def latest(self, channel: str) -> bytes | None:
        """The channel's last message since its subscription was confirmed, else None."""
        known = self._channels.get(channel)
        return None if known is None else known.latest

    def heard(self, channel: str) -> tuple[bytes | None, int]:
        """`latest` and `since` of a channel."""
        known = self._channels.get(channel)
        if known is None:
            return None, 0
        doubt = int(self.loop.time() / _BELIEVED_S) * _SPANS if self._is_doubted else 0
        return known.latest, known.since + doubt

    def expect(self, name: str, after: bytes, message: bytes) -> None:
        """Register a channel's next message in advance, if ``after`` is the last one; its arrival wakes no task.

        :param message: Redis's next message to the channel, except one that makes readers read again.
        """
        channel = self._channels.get(name)
        if channel is not None and channel.latest == after and len(channel.expected) < _MOST_EXPECTED:
            channel.expected.append(message)
            channel.latest = message
            _announce(channel)

    def learn(self, name: str, since: int, message: bytes) -> None:
        """Use a read's result as the channel's last message, unless one as new has arrived; wakes no task.

        :param since: `since` at the start of the read. The subscription was up, so a later change has a message.
        """
        channel = self._channels.get(name)
        if channel is None or not channel.confirmed or self.since(name) != since:
            return
        if channel.latest is None or channel.latest.startswith(_VOID):
            channel.latest = message

    def since(self, channel: str) -> int:
        """A number that changes when messages may have been lost, or when one makes readers read again.

        0 without listeners. While the number stays the same, an earlier read and `latest` are valid.
        """
        return self.heard(channel)[1]

    def subscribed_since(self, channel: str) -> int:
        """As `since`, but believing each channel until its subscription is lost or its slot has moved."""
        known = self._channels.get(channel)
        return 0 if known is None else known.since

    def listen(self, channels: Iterable[str]) -> Listening:
        """Listen to channels. They stay subscribed for a minute after the block, for the next listener."""
        listening = Listening(self, [self._channel(name) for name in channels])
        self._sweep()
        return listening

    def follow(self, channels: Iterable[str], noted: Callable[[str], None]) -> Listening:
        """As `listen`, from now on: calls a function with the channel at each message, which must not raise."""
        following = _Following(self, [self._channel(name) for name in channels], noted)
        self._sweep()
        return following.__enter__()

    @property
    def doubted_s(self) -> float | None:
        """The seconds for which a channel's silence is trusted; None for ever."""
        return _BELIEVED_S if self._is_doubted else None

    def keep(self, name: str) -> bool:
        """Keep a channel subscribed for the next minute; true if `since` covers its changes already."""
        channel = self._channel(name)
        self._sweep()
        if not channel.listeners:
            self._left(channel)
        return channel.confirmed

    def wake_all(self) -> None:
        """Wake all listeners as if every channel had a message; for a draining front-end."""
        for channel in list(self._channels.values()):
            _announce(channel)

    def _channel(self, name: str) -> _Channel:
        channel = self._channels.get(name)
        if channel is None:
            channel = self._channels[name] = _Channel(name)
            self._subscribe(channel)
        self._idle.pop(name, None)
        return channel

    def _subscribe(self, channel: _Channel) -> None:
        channel.link = link = self._store.subscriber(channel.name)
        if link is not None:
            link.send_unanswered(pack_command(("SSUBSCRIBE", channel.name)))

    def _left(self, channel: _Channel) -> None:
        channel.idle_since = self.loop.time()
        self._idle.pop(channel.name, None)
        self._idle[channel.name] = channel

    def _sweep(self) -> None:
        """Unsubscribe the channels without a listener for `_LINGER_S`; ``_idle`` has the oldest first."""
        deadline = self.loop.time() - _LINGER_S
        while self._idle:
            name, channel = next(iter(self._idle.items()))
            if channel.idle_since > deadline:
                return
            del self._idle[name]
            link = self._channels.pop(name).link
            if link is not None:
                link.send_unanswered(pack_command(("SUNSUBSCRIBE", name)))

    def _attach(self, link: Link) -> None:
        link.on_push = partial(self._pushed, link)
        link.on_up = lambda: self._resubscribe(link)
        link.on_down = lambda: self._lost(link)

    def _on(self, link: Link) -> Iterator[_Channel]:
        return (channel for channel in list(self._channels.values()) if channel.link is link)

    def _resubscribe(self, link: Link) -> None:
        for channel in self._on(link):
            self._subscribe(channel)

    def _renew(self) -> None:
        """Subscribe the channels of moved slots at their new servers."""
        for channel in list(self._channels.values()):
            if channel.link is not self._store.subscriber(channel.name):
                _forget(channel)
                self._subscribe(channel)

    def _lost(self, link: Link) -> None:
        for channel in self._on(link):
            _forget(channel)

    def _pushed(self, link: Link, message: Any) -> None:
        if isinstance(message, ReplyError):
            self._refused(link, str(message))
            return
        kind, name = message[0], message[1].decode()
        channel = self._channels.get(name)
        if channel is None or link is not channel.link:
            # The channel has no listener, or the server has lost the channel's slot.
            return
        if kind == b"smessage":
            _take(channel, message[2])
            self._sweep()
        elif kind == b"ssubscribe":
            _confirm(channel)
        elif kind == b"sunsubscribe":
            # The server sends this when the slot moves away. MOVED names the new server; else the slots are read again.
            _forget(channel)
            self._subscribe(channel)
            self._store.subscription_moved(link)

    def _refused(self, link: Link, text: str) -> None:
        if text.startswith("MOVED "):
            self._store.subscription_moved(link, text)
            return
        if isinstance(as_exception(text), StoreRefusing):
            # This answers a PING: a server that cannot write to its disk refuses even this, and `Outages` logs it.
            return
        log.warning("redis refused a subscription; waits last until their deadlines", reason=text)


def _take(channel: _Channel, message: bytes) -> None:
    if channel.expected and channel.expected[0] == message:
        del channel.expected[0]
        return
    channel.expected.clear()
    channel.latest = message
    if message.startswith(_VOID):
        channel.since = next(_moments)
    _announce(channel)


def _announce(channel: _Channel) -> None:
    for listening in channel.listeners:
        listening._note(channel.name)


def _confirm(channel: _Channel) -> None:
    if not channel.confirmed:
        channel.since = next(_moments)
    channel.confirmed = True
    _announce(channel)


def _forget(channel: _Channel) -> None:
    channel.confirmed = False
    channel.latest = None
    channel.expected.clear()
    channel.since = next(_moments)
    _announce(channel)
