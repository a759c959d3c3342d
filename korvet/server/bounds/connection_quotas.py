"""The bounds on connections of a process and of its listeners: the number of open ones, and the rate of new ones.

A connection beyond a bound waits in the backlog, as on Kafka, until another one closes or the rate allows it. Each
connection counts for the process, and for all listeners with the name of its own. Listeners that wait for the process
take turns, so that a flood at one of them shuts no other out.

Source: ConnectionQuotas.waitForConnectionSlot; KIP-402, KIP-612
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Protocol

from korvet.configs.listeners import CREATION_RATE, LISTENER_CONFIGS, MOST_CONNECTIONS, listener_config
from korvet.configs.types import INT_MAX
from korvet.configs.values import BrokerValues
from korvet.errors import ConfigError
from korvet.quotas.bucket import Bucket, RateLimit
from korvet.quotas.rules import Windows
from korvet.rate_limited_log import RateLimitedLog
from korvet.server.ground import machine


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """The largest number of open connections, and the rate of new ones; None without a bound."""

    most: int = INT_MAX
    rate: RateLimit | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """The bound of a process, and the bounds of its listeners by their names in lower case."""

    process: Bound = Bound()
    listeners: Mapping[str, Bound] = field(default_factory=dict)


def bounds_of(broker: Mapping[str, str]) -> Bounds:
    """The bounds that Kafka's settings name.

    :raises ConfigError: if a setting is not in its range, or two spellings of a listener's name set the same one.
    """
    of_listeners: dict[str, dict[str, str]] = {}
    for name in broker:
        if (found := listener_config(name)) is not None:
            other = of_listeners.setdefault(found.listener, {}).setdefault(found.config, name)
            if other != name:
                raise ConfigError(f"{name}: {other} sets the same; the case of a listener's name does not count")
    values = BrokerValues(broker)
    return Bounds(
        process=_bound_of(values, {name: name for name in LISTENER_CONFIGS}),
        listeners={listener: _bound_of(values, names) for listener, names in of_listeners.items()},
    )


def _bound_of(values: BrokerValues, names: Mapping[str, str]) -> Bound:
    """A bound by ``names``: the name of a broker config -> the name under which the process or a listener has it."""
    most, rate = (
        values.integer(names[name]) if name in names else INT_MAX for name in (MOST_CONNECTIONS, CREATION_RATE)
    )
    past_s = Windows.of(values).past_s
    return Bound(most=most, rate=None if rate >= INT_MAX else RateLimit(CREATION_RATE, rate, rate * past_s))


class Waiting(Protocol):
    """A listening socket at which connections wait."""

    listener: str

    def go_on(self) -> None:
        """Accept one connection, if one waits, and go on."""


class _Counted:
    """The connections of a process or of a listener's name.

    :param shown: what the log shows beside their number.
    """

    def __init__(self, bound: Bound, now: float, shown: Mapping[str, str]) -> None:
        self.open = 0
        self._shown = shown
        self._lines = RateLimitedLog()
        self._bucket: Bucket | None = None
        self.configure(bound, now)

    def configure(self, bound: Bound, now: float) -> None:
        """Apply another bound. Use of a rate so far still counts."""
        self.bound = bound
        if bound.rate is None:
            self._bucket = None
        elif self._bucket is None:
            self._bucket = Bucket(bound.rate, now)
        else:
            self._bucket.limit = bound.rate

    def wait_s(self, now: float) -> float:
        """The time until one more connection may come; infinite if another one has to close first."""
        if self.open >= self.bound.most:
            return inf
        return 0.0 if self._bucket is None else self._bucket.wait_s(now)

    def increment(self, now: float) -> None:
        self.open += 1
        if self._bucket is not None:
            self._bucket.consume(1, now)

    def forget_new(self, now: float) -> None:
        """Count one new connection less; the open ones stay as many."""
        if self._bucket is not None:
            self._bucket.consume(-1, now)

    def log_if_full(self) -> None:
        """Log now and then that it is full."""
        if self.open >= self.bound.most:
            event = "no more connections are accepted until others leave"
            self._lines.write("warning", event, connections=self.open, **self._shown)


class ConnectionQuotas:
    """The counters of a process's connections. Connections name their listener, in upper or lower case."""

    def __init__(self, bounds: Bounds) -> None:
        self._loop = asyncio.get_running_loop()
        now = self._loop.time()
        self._lent = 0
        self._bounds = bounds
        self._process = _Counted(self._process_bound(), now, {})
        self._listeners: dict[str, _Counted] = {}
        self._waiting: dict[Waiting, None] = {}
        """Sockets that wait, the longest one first."""
        self._timer: asyncio.TimerHandle | None = None
        self._wakes_at = inf

    @property
    def open(self) -> int:
        """The connections of the process, including those whose client is not known yet."""
        return self._process.open

    @property
    def most(self) -> int:
        """The most connections of the process."""
        return self._process.bound.most

    def configure(self, bounds: Bounds) -> None:
        """Apply other bounds. Open connections stay open."""
        now = self._loop.time()
        self._bounds = bounds
        self._process.configure(self._process_bound(), now)
        for name, counted in self._listeners.items():
            counted.configure(bounds.listeners.get(name, Bound()), now)
        self._let_in()

    def lend(self, count: int) -> bool:
        """Keep file descriptors of connections for another use; a negative count gives them back.

        :returns: false if fewer are free; then nothing changes.
        """
        if count > machine.most_connections() - self._lent - self._process.open:
            return False
        self._lent += count
        self._process.configure(self._process_bound(), self._loop.time())
        if count < 0:
            self._let_in()
        return True

    def _process_bound(self) -> Bound:
        """The process's bound, or less if the process has fewer file descriptors."""
        bound = self._bounds.process
        return Bound(most=min(bound.most, max(0, machine.most_connections() - self._lent)), rate=bound.rate)

    def may_accept(self, one: Waiting) -> bool:
        """Count one more connection. If there may be none now, the socket goes on once there may be."""
        now = self._loop.time()
        for counted in (self._process, listener := self._listener(one.listener)):
            if counted.wait_s(now):
                counted.log_if_full()
                self._waiting[one] = None
                self._wake_in(max(self._process.wait_s(now), listener.wait_s(now)))
                return False
        self._process.increment(now)
        listener.increment(now)
        return True

    def failed(self, listener: str) -> None:
        """Uncount a connection that could not be accepted."""
        self._forget_new(listener)
        self._uncount(listener)

    def forget_new(self, listener: str) -> None:
        """Uncount a new connection that its address's rate refused.

        Source: ConnectionQuotas.recordIpConnectionMaybeThrottle
        """
        self._forget_new(listener)
        self._let_in()

    def left(self, listener: str) -> None:
        """Uncount a connection that has ended."""
        self._uncount(listener)
        self._let_in()

    def _forget_new(self, listener: str) -> None:
        now = self._loop.time()
        self._process.forget_new(now)
        self._listener(listener).forget_new(now)

    def _uncount(self, listener: str) -> None:
        self._process.open -= 1
        self._listener(listener).open -= 1

    def _listener(self, name: str) -> _Counted:
        key = name.lower()
        found = self._listeners.get(key)
        if found is None:
            bound = self._bounds.listeners.get(key, Bound())
            found = self._listeners[key] = _Counted(bound, self._loop.time(), {"listener": name})
        return found

    def _let_in(self) -> None:
        """Let sockets accept one connection each, the longest waiting first, while there is room."""
        for one in list(self._waiting):
            now = self._loop.time()
            if process_s := self._process.wait_s(now):
                # This one's listener may still be full, while later ones wait for the process alone.
                self._wake_in(process_s)
                break
            if wait_s := self._listener(one.listener).wait_s(now):
                self._wake_in(wait_s)
            else:
                del self._waiting[one]
                one.go_on()

    def _wake_in(self, wait_s: float) -> None:
        """Look again when the rate allows it; without such a time, the next closed connection looks again."""
        if wait_s == inf:
            return
        wake_at = self._loop.time() + wait_s
        if self._timer is None or self._wakes_at > wake_at:
            if self._timer is not None:
                self._timer.cancel()
            # uvloop's handle of a time below a millisecond cannot log_if_full when it is due.
            self._timer, self._wakes_at = self._loop.call_later(wait_s, self._woken), wake_at

    def _woken(self) -> None:
        self._timer = None
        self._let_in()
