"""One module per Kafka API key. Each registers itself with `api`; ApiVersions is built from this registry.

A module defines ``async def handle(ctx, request) -> Answer``. A connection's requests are answered one after the other,
as in Kafka. `Start` says when a handler begins: most begin when their request arrives.

Such a handler runs without a task (`korvet.redis.reply`). It may wait for replies of Redis, and resumes as soon as they
arrive. When it waits for anything else, it continues in the connection's task once its request is the first. Everything
before its first wait happens in the order of requests. If the client leaves before that, the coroutine is closed, so
its ``finally`` must not wait.

Each module declares what its clients need: ``needs`` is a check that runs before the handler, if there is an authorizer
(`korvet.api.shared.needs`). The handler gets a request without its forbidden parts.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Coroutine, Generator, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from korvet.api.shared.changes import noted, things_of
from korvet.api.shared.context import Context
from korvet.api.shared.needs import Needs
from korvet.security.rights import Rights
from korvet.wire.requests import Entity
from korvet.wire.writer import Fields

Answer = Fields | None
"""The `Fields` to write, or None for no answer at all (acks=0)."""


Handle = Callable[[Context, Any], Coroutine[Any, Any, Answer]]
"""A handler; it gets only requests of its own API."""


class Start(Enum):
    """When a handler begins."""

    IN_TURN = auto()
    """In the connection's task, when the request is its first. Only for APIs that wait for other clients or for time,
    and for logins, whose answers change what the connection takes."""
    IF_ALONE = auto()
    """When the request arrives, if no earlier one of its connection is in flight; else in its turn."""
    PIPELINED = auto()
    """When the request arrives. One that goes on in the task before any reply holds back later ones until it has its
    answer, so that commands reach Redis in the order of requests."""


IN_TURN, IF_ALONE, PIPELINED = Start
"""Names of the members: looking one up in the enumeration would cost more than using it."""


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
    start: Start = IF_ALONE
    is_repeated: bool = False
    """True if clients send the very same request again and again."""


_registry: dict[int, Api] = {}


def api(
    key: int,
    lowest: int,
    highest: int,
    *,
    needs: Needs,
    start: Start = IF_ALONE,
    advertised_lowest: int | None = None,
    is_repeated: bool = False,
) -> Callable[[Handle], Handle]:
    """Register the decorated coroutine function as the handler of an API key.

    :param needs: the check of the client's rights; every API must have one.
    :param is_repeated: see `Api`.
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
            start=start,
            is_repeated=is_repeated,
        )
        return handle

    return register


def _guarded(needs: Needs, handle: Handle) -> Handle:
    def guarded(ctx: Context, request: Entity) -> Coroutine[Any, Any, Answer]:
        return handle(ctx, request) if ctx.rights is None else _checked(needs, handle, ctx, ctx.rights, request)

    return guarded


async def _checked(needs: Needs, handle: Handle, ctx: Context, rights: Rights, request: Entity) -> Answer:
    narrowed = needs(ctx, rights, request)
    if isinstance(narrowed, Generator):
        narrowed = await ctx.frontend.turns.result(narrowed)
    left = request if narrowed is None else narrowed.request
    answer: Any = None
    if left is not None and (names := things_of(ctx.api_key, left)):
        with noted(ctx, names) as change:
            answer = await handle(ctx, left)
            change.answered(answer)
    elif left is not None:
        answer = await handle(ctx, left)
    return answer if narrowed is None else narrowed.complete(answer)


def registry() -> Mapping[int, Api]:
    """Every served API by its key; imports all modules of this package on first use."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
    return _registry
