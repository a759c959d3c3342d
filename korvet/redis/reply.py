"""The replies of Redis, and coroutines that wait for them without a task.

A task costs a turn of the loop for each reply. So the connection of a client steps the coroutine of a short request
itself (`korvet.server.conversation.requests`). If such a coroutine waits for a `Reply`, it goes on in the callback that
brings it. If it waits for anything else, it goes on in the connection's task.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from types import coroutine
from typing import Any

_set_result = asyncio.Future.set_result


class Reply(asyncio.Future[Any]):
    """The reply to one command. ``then``, which never raises, is called at once when it comes, before any callback."""

    then: Callable[[], None] | None = None

    def set_result(self, result: Any) -> None:
        _set_result(self, result)
        if (then := self.then) is not None:
            self.then = None
            then()

    def set_exception(self, exception: type | BaseException) -> None:
        super().set_exception(exception)
        if (then := self.then) is not None:
            self.then = None
            then()

    def cancel(self, msg: Any | None = None) -> bool:
        is_cancelled = super().cancel(msg)
        if (then := self.then) is not None:
            self.then = None
            then()
        return is_cancelled


@coroutine
def in_task() -> Generator[None, None, None]:
    """Go on in a task: in that of the connection, when the request is its first. In a task this is a turn of the loop.

    What belongs to a task needs this first: anyio's cancel scopes, task groups and locks, and context variables.
    """
    yield
