"""One module per Kafka API key. Each registers itself with `api`; ApiVersions is built from this registry.

A module defines ``handle`` and may define ``start`` or ``begin``:

- ``async def handle(ctx, request) -> Answer`` serves a request. A connection's requests are handled one after the
  other, as in Kafka, so a handler may wait as long as it needs.
- ``def start(ctx, request) -> Awaitable[Answer] | None`` is for requests that are pipelined (Produce). The connection
  calls it when the frame has arrived. It issues all its commands to Redis, and returns an awaitable for their replies.
  It returns None if it cannot start at once, such as when a topic is not in the catalog's cache. Then ``handle`` gets
  the request in turn. The connection holds back later requests, so that commands reach Redis in the order of requests.
- ``def begin(ctx, request) -> Begun | None`` is for short requests that need one call. The connection calls it when the
  frame has arrived and no earlier request is in flight. Redis's reply is answered without a task's turn. It returns
  None if something must be waited for first; then ``handle`` gets the request.

Each module declares what its clients need: ``needs`` is a check that runs before all three, if there is an authorizer
(`korvet.api.shared.needs`). A request of which a part is forbidden goes to ``handle``, without that part. So does a
request of many names, whose check takes turns.
"""

from __future__ import annotations

import asyncio
import importlib
import pkgutil
from collections.abc import Awaitable, Callable, Generator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from korvet.api.shared.changes import noted, things_of
from korvet.api.shared.context import Context
from korvet.api.shared.needs import Needs
from korvet.security.rights import Rights
from korvet.wire.writer import Fields

Answer = Fields | None
"""`Fields` to be written, or None for no answer at all (acks=0)."""


class Begun(NamedTuple):
    """A request that one call answers. ``finish`` makes the answer of the call's done future, and never waits; None if
    ``handle`` has to serve the request after all."""

    reply: asyncio.Future[Any]
    finish: Callable[[asyncio.Future[Any]], Answer]


Handle = Callable[[Context, Any], Awaitable[Answer]]
Start = Callable[[Context, Any], Awaitable[Answer] | None]
Begin = Callable[[Context, Any], Begun | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Api:
    """A served API: versions ``lowest`` to ``highest`` work; ApiVersions shows ``advertised_lowest``."""

    key: int
    name: str
    lowest: int
    highest: int
    advertised_lowest: int
    handle: Handle
    needs: Needs
    start: Start | None = None
    begin: Begin | None = None
    is_repeated: bool = False
    """Whether clients send the very same request again and again."""


_registry: dict[int, Api] = {}


def api(
    key: int,
    lowest: int,
    highest: int,
    *,
    needs: Needs,
    start: Start | None = None,
    begin: Begin | None = None,
    advertised_lowest: int | None = None,
    is_repeated: bool = False,
) -> Callable[[Handle], Handle]:
    """Register the decorated coroutine function as the handler of an API key.

    :param needs: what a client must be allowed to do; without one an API cannot be.
    :param is_repeated: as `Api` has it.
    :raises RuntimeError: if the key is taken.
    """

    def register(handle: Handle) -> Handle:
        if key in _registry:
            raise RuntimeError(f"API key {key} is registered by {_registry[key].name} already")
        _registry[key] = Api(
            key=key,
            name=handle.__module__.rpartition(".")[2],
            lowest=lowest,
            highest=highest,
            advertised_lowest=lowest if advertised_lowest is None else advertised_lowest,
            handle=_guarded(needs, handle),
            needs=needs,
            start=None if start is None else _guarded_start(needs, start),
            begin=None if begin is None else _guarded_begin(needs, begin),
            is_repeated=is_repeated,
        )
        return handle

    return register


def _guarded(needs: Needs, handle: Handle) -> Handle:
    def guarded(ctx: Context, request: Any) -> Awaitable[Answer]:
        return handle(ctx, request) if ctx.rights is None else _checked(needs, handle, ctx, ctx.rights, request)

    return guarded


async def _checked(needs: Needs, handle: Handle, ctx: Context, rights: Rights, request: Any) -> Answer:
    found = needs(ctx, rights, request)
    narrowed = await ctx.frontend.turns.result(found) if isinstance(found, Generator) else found
    left = request if narrowed is None else narrowed.request
    answer: Any = None
    if left is not None and (names := things_of(ctx.api_key, left)):
        with noted(ctx, names) as change:
            answer = await handle(ctx, left)
            change.answered(answer)
    elif left is not None:
        answer = await handle(ctx, left)
    return answer if narrowed is None else narrowed.complete(answer)


def _guarded_start(needs: Needs, start: Start) -> Start:
    def guarded(ctx: Context, request: Any) -> Awaitable[Answer] | None:
        return start(ctx, request) if ctx.rights is None or needs(ctx, ctx.rights.quiet, request) is None else None

    return guarded


def _guarded_begin(needs: Needs, begin: Begin) -> Begin:
    def guarded(ctx: Context, request: Any) -> Begun | None:
        return begin(ctx, request) if ctx.rights is None or needs(ctx, ctx.rights.quiet, request) is None else None

    return guarded


def registry() -> Mapping[int, Api]:
    """Every served API by its key; imports all modules of this package on first use."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
    return _registry
