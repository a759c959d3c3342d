"""Threads that owners share."""

from __future__ import annotations

import gc
import threading
import weakref
from contextlib import suppress
from functools import partial

import anyio
import anyio.to_thread
import pytest

from korvet.store.threads import COUNT_CPU_S, FairThreads

pytestmark = pytest.mark.anyio


class Buffer(bytearray):
    """One whose end can be seen."""


async def test_failure_frees_the_buffers_of_its_thread_without_the_collector() -> None:
    threads, buffers = FairThreads(1, 1), list[weakref.ref[Buffer]]()

    def failing() -> None:
        buffer = Buffer(1000)
        buffers.append(weakref.ref(buffer))
        try:
            raise ValueError
        except ValueError as error:
            raise KeyError from error

    gc.disable()
    try:
        with suppress(KeyError):
            await threads.run("a", failing)
        # Another job, for the thread itself lets go a moment later.
        await threads.run("a", int)
        assert [buffer() is None for buffer in buffers] == [True]
    finally:
        gc.enable()


async def test_long_queue_of_one_owner_delays_another_by_one_job_at_most() -> None:
    threads, done = FairThreads(1, 1), list[str]()
    begun, go_on = threading.Event(), threading.Event()

    def first() -> None:
        begun.set()
        go_on.wait(30)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(threads.run, "hostile", first)
        await anyio.to_thread.run_sync(begun.wait)
        for owner in ("hostile",) * 20 + ("victim", "victim"):
            tasks.start_soon(threads.run, owner, partial(done.append, owner))
        await anyio.wait_all_tasks_blocked()
        go_on.set()
    assert done[:4] == ["hostile", "victim", "hostile", "victim"]
    assert len(done) == 22


async def test_busy_owner_leaves_a_thread_to_others() -> None:
    threads, go_on = FairThreads(2, 1), threading.Event()
    async with anyio.create_task_group() as tasks:
        for _ in range(5):
            tasks.start_soon(threads.run, "hostile", partial(go_on.wait, 30))
        await anyio.wait_all_tasks_blocked()
        assert await threads.run("victim", lambda: 7) == 7
        go_on.set()


async def test_thread_of_a_caller_that_left_keeps_its_turn_and_counts_its_time() -> None:
    threads, begun, go_on, spent = FairThreads(1, 1), threading.Event(), threading.Event(), list[float]()

    def work() -> None:
        begun.set()
        go_on.wait(30)

    COUNT_CPU_S.set(spent.append)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(partial(threads.run, "a", work, is_abandoned_on_cancel=True))
        await anyio.to_thread.run_sync(begun.wait)
        tasks.cancel_scope.cancel()
    COUNT_CPU_S.set(None)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(threads.run, "b", partial(go_on.wait, 30))
        await anyio.wait_all_tasks_blocked()
        assert not spent
        go_on.set()
    assert len(spent) == 1


async def test_caller_that_leaves_the_queue_takes_no_turn() -> None:
    threads, go_on = FairThreads(1, 1), threading.Event()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(threads.run, "a", partial(go_on.wait, 30))
        await anyio.wait_all_tasks_blocked()
        with anyio.move_on_after(0):
            await threads.run("b", lambda: None)
        assert not threads._turns._waiting
        go_on.set()
    assert await threads.run("a", lambda: 1) == 1
