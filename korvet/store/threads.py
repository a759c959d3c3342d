"""Threads shared by the owners of a process's connections: namespaces, or addresses.

Owners get threads in rotation, one job at a time, so a long queue of one owner does not delay another. A thread's CPU
time counts for its request.

An exception leaves its thread as a value without frames, and is raised again in a frame without a reference to it.
Frames hold buffers, and only the garbage collector, which runs rarely, frees a frame that refers to its own exception.
"""

from __future__ import annotations

import asyncio
import traceback
from collections import Counter
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from contextvars import ContextVar
from time import thread_time
from typing import Any, Final, NamedTuple, TypeVar

import anyio

from korvet.errors import KorvetError, forget_frames
from korvet.redis.reply import in_task

T = TypeVar("T")

COUNT_CPU_S: Final[ContextVar[Callable[[float], None] | None]] = ContextVar("COUNT_CPU_S", default=None)
"""Adds up the threads' seconds for the current request; None if not counted."""


class Rotation:
    """Waiting tasks by owner. Owners take turns, a task at a time."""

    def __init__(self) -> None:
        self._waiting: dict[str, dict[asyncio.Future[None], None]] = {}
        """The next owner comes first."""

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, owner: str) -> asyncio.Future[None]:
        """A future that a task of the owner awaits."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(owner, {})[turn] = None
        return turn

    def remove(self, owner: str, turn: asyncio.Future[None]) -> bool:
        """Remove a cancelled task; false if it already had its turn, which the caller must give back."""
        waiting = self._waiting.get(owner, {})
        if turn not in waiting:
            return False
        del waiting[turn]
        if not waiting:
            del self._waiting[owner]
        return True

    def admit(self, may: Callable[[str], bool] = lambda _: True) -> str | None:
        """Admit the next task whose owner ``may`` run. Returns the owner; None if there is none."""
        for owner in self._waiting:
            if may(owner):
                waiting = self._waiting.pop(owner)
                turn = next(iter(waiting))
                del waiting[turn]
                if waiting:
                    self._waiting[owner] = waiting
                # A task that was cancelled in this round of the loop gives its turn back when it sees that.
                if not turn.done():
                    turn.set_result(None)
                return owner
        return None


class Turns:
    """Turns of owners, some at a time.

    :param most: returns the most at once.
    :param most_of_one: the most of one owner. Below the former number, one busy owner leaves some to others.
    """

    def __init__(self, most: Callable[[], int], most_of_one: int) -> None:
        self._most, self._most_of_one = most, most_of_one
        self._running: Counter[str] = Counter()
        self._waiting = Rotation()

    async def begin(self, owner: str) -> None:
        """Wait until the owner may have one more turn. It counts until `end`."""
        turn = self._waiting.add(owner)
        self._admit()
        try:
            await turn
        except BaseException:
            if not self._waiting.remove(owner, turn):
                self.end(owner)
            raise

    def end(self, owner: str) -> None:
        """End one of the owner's turns."""
        self._running[owner] -= 1
        if not self._running[owner]:
            del self._running[owner]
        self._admit()

    @asynccontextmanager
    async def turn(self, owner: str) -> AsyncIterator[None]:
        """One of the owner's turns, for the time of the block."""
        await self.begin(owner)
        try:
            yield
        finally:
            self.end(owner)

    def _admit(self) -> None:
        while self._running.total() < self._most():
            owner = self._waiting.admit(lambda one: self._running[one] < self._most_of_one)
            if owner is None:
                return
            self._running[owner] += 1


class FairThreads:
    """The threads of one event loop.

    :param most: the most jobs at once.
    :param most_of_one: the most of one owner. Below ``most``, one busy owner leaves a thread to others.
    """

    def __init__(self, most: int, most_of_one: int) -> None:
        self._pool = ThreadPoolExecutor(most, thread_name_prefix="korvet")
        self._turns = Turns(lambda: most, most_of_one)

    async def run(self, owner: str, work: Callable[[], T], *, is_abandoned_on_cancel: bool = False) -> T:
        """Run blocking work; returns its result.

        :param is_abandoned_on_cancel: true if a cancelled caller leaves at once. The thread goes on, and counts, until
            the work ends.
        :raises BaseException: the work's exception.
        """
        await in_task()
        await self._turns.begin(owner)
        done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._pool.submit(self._work, done, owner, COUNT_CPU_S.get(), work)
        with anyio.CancelScope(shield=not is_abandoned_on_cancel):
            outcome = await done
        if not isinstance(outcome, _Raised):
            result: T = outcome
            return result
        error = outcome.error
        try:
            raise error
        finally:
            del error, outcome, done, work

    def _work(self, done: asyncio.Future[Any], owner: str, count: _Count, work: Callable[[], Any]) -> None:
        """Work in a thread, and hand the outcome to the loop."""
        began_s = thread_time()
        outcome = _outcome(work)
        spent_s = thread_time() - began_s
        # The loop may be closed if no task waits.
        with suppress(RuntimeError):
            done.get_loop().call_soon_threadsafe(self._worked, done, owner, count, spent_s, outcome)

    def _worked(self, done: asyncio.Future[Any], owner: str, count: _Count, spent_s: float, outcome: Any) -> None:
        self._turns.end(owner)
        if count is not None:
            count(spent_s)
        if not done.done():
            done.set_result(outcome)


_Count = Callable[[float], None] | None


class _Raised(NamedTuple):
    error: BaseException


def _outcome(work: Callable[[], Any]) -> Any:
    try:
        return work()
    except BaseException as error:
        if not isinstance(error, KorvetError):
            error.add_note("".join(traceback.format_exception(error)))
        forget_frames(error)
        return _Raised(error)
