"""Calls that are made together. A call that fails does not keep the others from their ends."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from itertools import islice
from typing import Any, Final

from korvet.errors import KorvetError

_AT_ONCE: Final = 500

Failures = list[KorvetError]
"""The failures of calls, which kept no other call from its end."""


async def outcomes(calls: Iterable[Callable[[], Awaitable[Any]]]) -> list[Any]:
    """Make calls, some at once. Returns the result or the KorvetError of each, in order.

    :raises BaseException: any other exception of a call, when every call has ended.
    """
    left, found = iter(calls), []
    while some := list(islice(left, _AT_ONCE)):
        found += await settled(call() for call in some)
    return found


async def settled(calls: Iterable[Awaitable[Any]]) -> list[Any]:
    """Wait for calls that are under way. Returns the result or the KorvetError of each, in order.

    :raises BaseException: any other exception of a call, when every call has ended.
    """
    found = await asyncio.gather(*calls, return_exceptions=True)
    for outcome in found:
        if isinstance(outcome, BaseException) and not isinstance(outcome, KorvetError):
            raise outcome
    return found
