"""Which of the requests that wait for a share partition's records calls Redis: after an append one, and not all.

There may be records to acquire after news: a message of the log's or the share partition's channel, or the time at
which a lock ends. Then one waiter calls. If that leaves records, everybody may call at once, and each such call wakes
two waiters, until one finds the last records. So an append costs one call however many wait, and a backlog is not
handed out one by one. While there can be nothing, nobody calls: neither a waiter nor a new request.

Here is no I/O: the owner brings the news, and waiters make the calls.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable


class Waiter:
    """A request's place in the queue of a supply. ``wake`` is called when it may call."""

    __slots__ = ("has_turn", "wake")

    def __init__(self, wake: Callable[[], None]) -> None:
        self.wake = wake
        self.has_turn = False
        """True from its waking to its call or its leaving."""


class Supply:
    """What a process knows of the records that one share partition has for one group."""

    __slots__ = ("_calls", "_empty_at", "_is_plentiful", "_news", "_queue")

    def __init__(self) -> None:
        self._queue: OrderedDict[Waiter, None] = OrderedDict()
        self._calls = 0
        """The calls under way, and the waiters that have the turn to call."""
        self._news = 1
        self._empty_at = 0
        """The news that were known when a call began that left no records."""
        self._is_plentiful = False
        """True if the last call left records."""

    @property
    def may_have(self) -> bool:
        """True unless there is certainly nothing to acquire."""
        return self._is_plentiful or self._news > self._empty_at

    @property
    def is_idle(self) -> bool:
        """True if nobody waits or calls."""
        return not self._queue and not self._calls

    def may_call(self) -> bool:
        """True if a request may call at once, and need not wait for others' calls."""
        return self._is_plentiful or (self._news > self._empty_at and not self._calls)

    def begin(self, waiter: Waiter | None = None) -> int:
        """Begin a call, perhaps of a waiter that has the turn; returns what `end` needs."""
        if waiter is None or not waiter.has_turn:
            self._calls += 1
        else:
            waiter.has_turn = False
        return self._news

    def end(self, began: int, *, has_more: bool | None) -> None:
        """End a call.

        :param has_more: true if it left records; None if it failed.
        """
        self._calls -= 1
        if has_more is not None:
            self._is_plentiful = has_more
            if not has_more:
                self._empty_at = max(self._empty_at, began)
        self._pass_on()

    def tell(self) -> None:
        """Note news."""
        self._news += 1
        self._pass_on()

    def wait(self, waiter: Waiter) -> None:
        """Queue a waiter. It is woken once; it must then call, or `leave`."""
        self._queue[waiter] = None
        self._pass_on()

    def leave(self, waiter: Waiter) -> None:
        """Let a waiter go that does not call."""
        if waiter.has_turn:
            waiter.has_turn = False
            self._calls -= 1
            self._pass_on()
        else:
            self._queue.pop(waiter, None)

    def _pass_on(self) -> None:
        """Wake the next waiters that may call."""
        for _ in range(2 if self._is_plentiful else 1):
            if not self._queue or not self.may_call():
                return
            waiter, _ = self._queue.popitem(last=False)
            waiter.has_turn = True
            self._calls += 1
            waiter.wake()
