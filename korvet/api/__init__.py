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
"""

from __future__ import annotations

import asyncio
import importlib
import pkgutil
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from korvet.api.shared.context import Context
from korvet.wire.codec import Buffers, Fields

Answer = Fields | Buffers | None
"""`Fields` to be encoded, a body packed by hand, or None for no answer at all (acks=0)."""


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
    start: Start | None = None
    begin: Begin | None = None


_registry: dict[int, Api] = {}


def api(
    key: int,
    lowest: int,
    highest: int,
    *,
    start: Start | None = None,
    begin: Begin | None = None,
    advertised_lowest: int | None = None,
) -> Callable[[Handle], Handle]:
    """Register the decorated coroutine function as the handler of an API key.

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
            handle=handle,
            start=start,
            begin=begin,
        )
        return handle

    return register


def registry() -> Mapping[int, Api]:
    """Every served API by its key; imports all modules of this package on first use."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
    return _registry
