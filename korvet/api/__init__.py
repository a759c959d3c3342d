"""One module per Kafka API key. Each registers itself with `api`; ApiVersions is built from this registry.

A module defines ``handle`` and may define ``start``:

- ``async def handle(ctx, request) -> Answer`` serves a request. A connection's requests are handled one after the
  other, as in Kafka, so a handler may wait as long as it needs.
- ``def start(ctx, request) -> Awaitable[Answer] | None`` is for requests that are pipelined (Produce). The connection
  calls it when the frame has arrived. It issues all its commands to Redis, and returns an awaitable for their replies.
  It returns None if it cannot start at once, such as when a topic is not in the catalog's cache. Then ``handle`` gets
  the request in turn. The connection holds back later requests, so that commands reach Redis in the order of requests.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from korvet.api.shared.context import Context
from korvet.wire.codec import Buffers, Fields

Answer = Fields | Buffers | None
"""`Fields` to be encoded, a body packed by hand, or None for no answer at all (acks=0)."""
Handle = Callable[[Context, Any], Awaitable[Answer]]
Start = Callable[[Context, Any], Awaitable[Answer] | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Api:
    """A served API: versions ``lowest`` to ``highest`` work; ApiVersions shows ``advertised_lowest``."""

    key: int
    name: str
    lowest: int
    highest: int
    advertised_lowest: int
    handle: Handle
    start: Start | None


_registry: dict[int, Api] = {}


def api(
    key: int, lowest: int, highest: int, *, start: Start | None = None, advertised_lowest: int | None = None
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
        )
        return handle

    return register


def registry() -> Mapping[int, Api]:
    """Every served API by its key; imports all modules of this package on first use."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
    return _registry
