"""AlterClientQuotas (49), versions 0 and 1: set and remove quotas of users, client ids and addresses.

- 1: flexible

Each entity has its own outcome: all of its changes are made, or none. An entity that is named twice gets an error, and
its first changes are made, as in Kafka. An address is an IP address; korvet looks up no host names.

Source: ClientQuotaControlManager.alterClientQuotas; KIP-546, KIP-612.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kio.schema.errors import ErrorCode
from kio.static.primitive import i16

from korvet.api import api
from korvet.api.shared import needs
from korvet.api.shared.admin import change_failure
from korvet.api.shared.changes import noted
from korvet.api.shared.context import Context
from korvet.errors import KorvetError
from korvet.quotas.entity import Entity, entity_of, field_of, number_text, value_problem
from korvet.store.security.quotas import MOST_AT_ONCE
from korvet.wire import requests
from korvet.wire.writer import Fields

Parts = tuple[tuple[str, str | None], ...]
"""The types and names of an entity as a request gives them; a type that is named twice has its last name."""
Problem = tuple[ErrorCode, str]
Changes = dict[tuple[Entity, str], float | None]
_TOO_MANY = (ErrorCode.policy_violation, f"A request may alter at most {MOST_AT_ONCE} quotas")
_NO_ROOM = "The namespace has as many quotas as it may, or a name is too long"


def _refused(_ctx: Context, request: requests.AlterClientQuotasRequest) -> Fields:
    problem = needs.CODES[needs.CLUSTER], needs.MESSAGES[needs.CLUSTER]
    return _answer({_parts(entry): problem for entry in request.entries})


@api(49, 0, 1, needs=needs.cluster(needs.ALTER_CONFIGS, refused=_refused))
async def handle(ctx: Context, request: requests.AlterClientQuotasRequest) -> Fields:
    outcomes: dict[Parts, Problem | None] = {}
    changes: Changes = {}
    async for entry in ctx.paced(request.entries):
        parts = _parts(entry)
        if parts in outcomes:
            outcomes[parts] = ErrorCode.invalid_request, f"Ignoring duplicate entity {_shown(parts)}"
            continue
        judged = _judged(parts, entry.ops)
        outcomes[parts] = (ErrorCode.invalid_request, judged) if isinstance(judged, str) else None
        if not isinstance(judged, str):
            changes.update(judged)
    if changes and not request.validate_only and (problem := await _changed(ctx, changes)) is not None:
        outcomes = {parts: outcome or problem for parts, outcome in outcomes.items()}
    return _answer(outcomes)


async def _changed(ctx: Context, changes: Changes) -> Problem | None:
    """Make all changes or none; returns the problem if none was made."""
    if len(changes) > MOST_AT_ONCE:
        return _TOO_MANY
    names = [
        f"{field_of(entity, key)}={'' if number is None else number_text(number)}"
        for (entity, key), number in changes.items()
    ]
    try:
        with noted(ctx, names, is_security=True) as change:
            code = await ctx.frontend.quotas.alter(changes)
            change.ended([code] * len(names))
    except KorvetError as error:
        return change_failure(ctx, error)
    return (ErrorCode(i16(code)), _NO_ROOM) if code else None


def _parts(entry: requests.EntryData) -> Parts:
    return tuple(sorted({part.entity_type: part.entity_name for part in entry.entity}.items()))


def _judged(parts: Parts, ops: Iterable[requests.OpData]) -> Changes | str:
    """The changes of an entity, or the problem with one of them."""
    entity = entity_of(dict(parts))
    if isinstance(entity, str):
        return entity
    changes: Changes = {}
    for op in ops:
        if (entity, op.key) in changes:
            return f"Ignoring duplicate entity {_shown(parts)}"
        problem = None if op.remove else value_problem(entity, op.key, op.value)
        if problem is not None:
            return problem
        changes[entity, op.key] = None if op.remove else op.value
    return changes


def _shown(parts: Parts) -> str:
    named = ", ".join(f"{kind}={'null' if name is None else name}" for kind, name in parts)
    return f"ClientQuotaEntity(entries={{{named}}})"


def _answer(outcomes: Mapping[Parts, Problem | None]) -> Fields:
    return {
        "entries": [
            {
                "error_code": ErrorCode.none if problem is None else problem[0],
                "error_message": None if problem is None else problem[1],
                "entity": [{"entity_type": kind, "entity_name": name} for kind, name in parts],
            }
            for parts, problem in outcomes.items()
        ]
    }
