"""The rights that each API needs: checks that run before a handler, and remove the forbidden parts of a request.

A check gets the rights of the client and the request. It returns None if everything is allowed, else the rest of the
request, and a function that adds refusals to the answer. A check of many names is a generator, which yields where other
requests are due. Handlers that answer for each item, or that create and filter items, use ``ctx.rights`` themselves;
their check is the part that refuses the whole request, or `by_handler`.

To clients a forbidden item and an unknown one look the same: a check by name never looks up whether the name exists.

Source: kafka.server.AuthHelper, KafkaApis, ControllerApis
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Set
from dataclasses import replace
from typing import Any, Final, NamedTuple, Protocol, TypeVar

from kio.schema.errors import ErrorCode

from korvet.api.shared.context import Context
from korvet.api.shared.loop_turns import SLICE
from korvet.security.acl import CLUSTER_NAME, Operation, ResourceType
from korvet.security.rights import Rights
from korvet.wire.requests import Entity
from korvet.wire.writer import Fields

R = TypeVar("R", bound=Entity)
T = TypeVar("T")

ALTER: Final = Operation.ALTER
ALTER_CONFIGS: Final = Operation.ALTER_CONFIGS
CLUSTER_ACTION: Final = Operation.CLUSTER_ACTION
CREATE: Final = Operation.CREATE
DELETE: Final = Operation.DELETE
DESCRIBE: Final = Operation.DESCRIBE
DESCRIBE_CONFIGS: Final = Operation.DESCRIBE_CONFIGS
READ: Final = Operation.READ
WRITE: Final = Operation.WRITE
CLUSTER: Final = ResourceType.CLUSTER
GROUP: Final = ResourceType.GROUP
TOPIC: Final = ResourceType.TOPIC
TRANSACTIONAL_ID: Final = ResourceType.TRANSACTIONAL_ID

CODES: Final[Mapping[ResourceType, ErrorCode]] = {
    TOPIC: ErrorCode.topic_authorization_failed,
    GROUP: ErrorCode.group_authorization_failed,
    CLUSTER: ErrorCode.cluster_authorization_failed,
    TRANSACTIONAL_ID: ErrorCode.transactional_id_authorization_failed,
}
"""The code of a refusal by the type of the resource."""
MESSAGES: Final[Mapping[ResourceType, str]] = {
    TOPIC: "Topic authorization failed.",
    GROUP: "Group authorization failed.",
    CLUSTER: "Cluster authorization failed.",
    TRANSACTIONAL_ID: "Transactional Id authorization failed.",
}
"""Kafka's messages of these codes (org.apache.kafka.common.protocol.Errors)."""

Served = Fields | None


class Narrowed(NamedTuple):
    """The rest of a request, or None if nothing is left; ``complete`` adds the refusals to the handler's answer."""

    request: Entity | None
    complete: Callable[[Served], Served]


Steps = Generator[None, None, Narrowed | None]
Check = Callable[[Context, Rights, R], Narrowed | Steps | None]
Needs = Check[Any]
"""The check of one API; it gets only requests of this API."""


class OfGroup(Protocol):
    """A request that names one group."""

    @property
    def group_id(self) -> str: ...


def nothing(_ctx: Context, _rights: Rights, _request: Entity) -> Narrowed | None:
    """The check of an API that every client may use."""
    return None


def by_handler(_ctx: Context, _rights: Rights, _request: Entity) -> Narrowed | None:
    """The check of an API whose handler checks each item of the request by ``ctx.rights``."""
    return None


def refusal(answer: Served) -> Narrowed:
    """The refusal of a whole request."""
    return Narrowed(None, lambda _: answer)


def failed(kind: ResourceType, **fields: object) -> Callable[..., Fields]:
    """A refusal of the whole request: the code and the message of a type of resource, and other fields."""
    return lambda *_: {"error_code": CODES[kind], "error_message": MESSAGES[kind], **fields}


def cluster(*operations: Operation, refused: Callable[[Context, R], Fields]) -> Check[R]:
    """A check that one of some operations on the cluster is allowed."""

    def check(ctx: Context, rights: Rights, request: R) -> Narrowed | None:
        return None if rights.allows_on_cluster(*operations) else refusal(refused(ctx, request))

    return check


def group(operation: Operation, refused: Callable[[Context, OfGroup], Served]) -> Needs:
    """A check of the one group that a request names in ``group_id``."""

    def check(ctx: Context, rights: Rights, request: OfGroup) -> Narrowed | None:
        if rights.allows(operation, GROUP, request.group_id):
            return None
        return refusal(refused(ctx, request))

    return check


def items(
    kind: ResourceType,
    operation: Operation,
    *,
    field: str,
    answered: str,
    refused: Callable[[T], Fields],
    name: Callable[[T], str] = str,
    is_whole: bool = False,
) -> Needs:
    """A check of each item in a field of the request; refused ones come last in the answer.

    :param answered: the answer's field of the items.
    :param refused: the answer for a forbidden item.
    :param is_whole: true to handle a request without any allowed item, and to answer a failure of the whole request
        without items.
    """

    def check(ctx: Context, rights: Rights, request: Entity) -> Steps:
        requested = getattr(request, field) or ()
        denied = yield from denied_names(ctx, rights, operation, kind, map(name, requested))
        if not denied:
            return None
        kept, others = yield from parted(ctx, requested, denied, name, refused)
        if is_whole:
            narrowed = replace(request, **{field: tuple(kept)})
            return Narrowed(narrowed, lambda answer: _extended(answer, answered, _unless_failed(answer, others)))
        return Narrowed(left(request, field, kept), lambda answer: _extended(answer, answered, others))

    return check


def left(request: Entity, field: str, kept: Iterable[Entity | str]) -> Entity | None:
    """The request with only these items in a field; None without items."""
    things = tuple(kept)
    return replace(request, **{field: things}) if things else None


def _unless_failed(answer: Fields | None, others: list[Fields]) -> list[Fields]:
    return [] if answer and answer["error_code"] else others


def _extended(answer: Fields | None, field: str, others: list[Fields]) -> Fields:
    found: Fields = {"error_code": ErrorCode.none} if answer is None else answer
    return {**found, field: [*found.get(field, ()), *others]}


def topics(operation: Operation, refused: Callable[[T], Fields], *, field: str = "topics", name: str = "name") -> Needs:
    """A check of each topic that the request names."""
    return items(TOPIC, operation, field=field, answered="topics", refused=refused, name=lambda one: getattr(one, name))


def every(*checks: Needs) -> Needs:
    """Checks one after the other; each but the last refuses the whole request or nothing."""

    def check(ctx: Context, rights: Rights, request: Entity) -> Steps:
        for one in checks:
            found = one(ctx, rights, request)
            if isinstance(found, Generator):
                found = yield from found
            if found is not None:
                return found
        return None

    return check


def denied_names(
    ctx: Context, rights: Rights, operation: Operation, kind: ResourceType, names: Iterable[str]
) -> Generator[None, None, frozenset[str]]:
    """The names on which an operation is not allowed; it yields where other requests are due."""
    is_due, size = ctx.frontend.turns.is_due, max(1, SLICE // rights.weight)
    denied = []
    for name in dict.fromkeys(names):
        if is_due(size):
            yield
        if not rights.allows(operation, kind, name):
            denied.append(name)
    return frozenset(denied)


def parted(
    ctx: Context, things: Iterable[T], denied: Set[str], name: Callable[[T], str], refused: Callable[[T], Fields]
) -> Generator[None, None, tuple[list[T], list[Fields]]]:
    """The items whose names are allowed, and the refusals of the others; it yields where other requests are due."""
    kept, others = list[T](), list[Fields]()
    for one in things:
        if ctx.frontend.turns.is_due():
            yield
        if name(one) in denied:
            others.append(refused(one))
        else:
            kept.append(one)
    return kept, others


async def unseen(ctx: Context, kind: ResourceType, names: Iterable[str], operation: Operation = DESCRIBE) -> Set[str]:
    """The names that the client may not describe, for lists that leave them out; the audit log gets no refusal."""
    if ctx.rights is None:
        return frozenset()
    return await ctx.frontend.turns.result(denied_names(ctx, ctx.rights.quiet, operation, kind, names))


def operations(ctx: Context, kind: ResourceType, name: str, everything: int) -> int:
    """The client's authorized operations on a resource; ``everything`` without an authorizer."""
    return everything if ctx.rights is None else ctx.rights.operations(kind, name)


def cluster_operations(ctx: Context, everything: int) -> int:
    """The client's authorized operations on the cluster: none without the right to describe it."""
    if ctx.rights is None:
        return everything
    return ctx.rights.operations(CLUSTER, CLUSTER_NAME) if ctx.rights.quiet.allows_on_cluster(DESCRIBE) else 0
