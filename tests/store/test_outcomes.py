"""Calls that are made together end together, and their caller's cancellation stays its own."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import anyio
import pytest

from korvet.errors import StoreUnavailable
from korvet.store.outcomes import outcomes, settled

pytestmark = pytest.mark.anyio


async def _value(value: int) -> int:
    return value


async def _failure(error: Exception) -> int:
    raise error


async def _never() -> int:
    await anyio.sleep_forever()
    return 0


async def test_failure_of_a_call_is_its_outcome() -> None:
    away = StoreUnavailable("away")
    assert await settled([_value(1), _failure(away), _value(3)]) == [1, away, 3]
    assert await settled([]) == []


async def test_other_exception_is_raised_when_every_call_has_ended() -> None:
    ended: list[str] = []

    async def slow() -> None:
        await asyncio.sleep(0)
        ended.append("slow")

    with pytest.raises(ZeroDivisionError):
        await settled([_failure(ZeroDivisionError()), slow()])
    assert ended == ["slow"]


@pytest.mark.parametrize(
    "calls",
    [
        (_never, lambda: _value(1)),
        (_never, lambda: _failure(StoreUnavailable("away"))),
        (lambda: _value(1), _never),
        (lambda: outcomes([_never, lambda: _value(1)]), lambda: _value(2)),
    ],
    ids=["last has ended", "last has failed", "first has ended", "calls in calls"],
)
async def test_caller_that_is_cancelled_ends_alone(calls: Sequence[Callable[[], Awaitable[Any]]]) -> None:
    """As a connection whose client leaves: the server's other tasks go on."""
    ended = anyio.Event()

    async def caller(scope: anyio.CancelScope) -> None:
        try:
            with scope:
                await outcomes(calls)
        finally:
            ended.set()

    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            scope = anyio.CancelScope()
            tasks.start_soon(caller, scope)
            for _ in range(5):
                await asyncio.sleep(0)
            scope.cancel()
            await ended.wait()
            for _ in range(5):
                await asyncio.sleep(0)
    assert scope.cancelled_caught
    assert not tasks.cancel_scope.cancel_called


async def test_calls_of_a_cancelled_caller_are_cancelled() -> None:
    call: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    with anyio.move_on_after(0.01):
        await settled([call, _value(1)])
    assert call.cancelled()
