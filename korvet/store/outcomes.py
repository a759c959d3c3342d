"""Concurrent calls. A failed call does not stop the others."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from itertools import islice
from typing import Any, Final

from korvet.errors import KorvetError
from korvet.redis.reply import in_task

_AT_ONCE: Final = 500

Failures = list[KorvetError]
"""The failures of calls that stopped no other call."""


Wanted = Callable[[Sequence[str]], Awaitable[Sequence[str]]]
"""Selects the names to list."""


async def all_of_them(names: Sequence[str]) -> Sequence[str]:
    """All names."""
    return names


async def outcomes(calls: Iterable[Callable[[], Awaitable[Any]]]) -> list[Any]:
    """Make calls, some at once. Returns the result or the KorvetError of each, in order.

    :raises BaseException: any other exception of a call, after every call has ended.
    """
    left, found = iter(calls), []
    while some := list(islice(left, _AT_ONCE)):
        found += await settled(call() for call in some)
    return found


async def settled(calls: Iterable[Awaitable[Any]]) -> list[Any]:
    """Await calls in flight. Returns the result or the KorvetError of each, in order.

    Cancelling the caller cancels the calls.

    :raises BaseException: any other exception of a call, after every call has ended.
    """
    await in_task()
    under_way = [asyncio.ensure_future(call) for call in calls]
    if not under_way:
        return []
    try:
        # Asyncio's gather with return_exceptions forgets the text of a cancellation if its last call has ended. By that
        # text anyio knows a cancellation of its own; any other one ends the whole task group.
        await asyncio.wait(under_way)
    except asyncio.CancelledError:
        for one in under_way:
            one.cancel()
            one.add_done_callback(_ignored)
        raise
    errors = [one.exception() for one in under_way]
    for error in errors:
        if error is not None and not isinstance(error, KorvetError):
            raise error
    return [one.result() if error is None else error for one, error in zip(under_way, errors, strict=True)]


def _ignored(call: asyncio.Future[Any]) -> None:
    """Retrieve the exception of an abandoned call, so that asyncio does not log it."""
    if not call.cancelled():
        call.exception()
