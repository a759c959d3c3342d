"""DescribeClientQuotas (48), versions 0 and 1: the quotas of users, client ids and addresses.

- 1: flexible

Without ``strict``, an entity may have more types than the filter names.

Source: KafkaApis.handleDescribeClientQuotasRequest, ClientQuotasImage.describe; KIP-546.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from typing import Final

from kio.schema.errors import ErrorCode

from korvet.api import api
from korvet.api.shared import needs
from korvet.api.shared.context import Context
from korvet.quotas.entity import DEFAULT, IP, TYPES, Entity
from korvet.wire import requests
from korvet.wire.writer import Fields


class MatchType(IntEnum):
    """The ways in which a filter's component matches (org.apache.kafka.common.requests.DescribeClientQuotasRequest)."""

    EXACT = 0
    DEFAULT = 1
    SPECIFIED = 2


_MATCH_TYPES: Final = frozenset(MatchType)


@api(
    48,
    0,
    1,
    needs=needs.cluster(
        needs.DESCRIBE_CONFIGS,
        refused=lambda *_: {
            "error_code": ErrorCode.cluster_authorization_failed,
            "error_message": None,
            "entries": None,
        },
    ),
)
async def handle(ctx: Context, request: requests.DescribeClientQuotasRequest) -> Fields:
    problem = _filter_problem(request.components)
    if problem is not None:
        code, message = problem
        return {"error_code": code, "error_message": message, "entries": None}
    quotas = ctx.frontend.quotas
    await quotas.refresh()
    return {
        "error_code": 0,
        "error_message": "",
        "entries": [
            _described(entity, found)
            async for entity, found in ctx.paced(sorted(quotas.settings.items(), key=_by_name))
            if _matches(entity, request.components, is_strict=request.strict)
        ],
    }


def _by_name(item: tuple[Entity, Mapping[str, float]]) -> list[tuple[str, str]]:
    return item[0].parts


def _described(entity: Entity, quotas: Mapping[str, float]) -> Fields:
    return {
        "entity": [{"entity_type": kind, "entity_name": name or None} for kind, name in entity.parts],
        "values": [{"key": key, "value": number} for key, number in sorted(quotas.items())],
    }


def _matches(entity: Entity, components: Sequence[requests.ComponentData], *, is_strict: bool) -> bool:
    parts = dict(entity.parts)
    if is_strict and len(parts) != len(components):
        return False
    return all(one.entity_type in parts and _is_match(one, parts[one.entity_type]) for one in components)


def _is_match(component: requests.ComponentData, name: str) -> bool:
    match MatchType(component.match_type):
        case MatchType.EXACT:
            return bool(name == component.match != DEFAULT)
        case MatchType.DEFAULT:
            return name == DEFAULT
        case MatchType.SPECIFIED:
            return True


def _filter_problem(components: Iterable[requests.ComponentData]) -> tuple[ErrorCode, str] | None:
    seen: set[str] = set()
    for component in components:
        kind = component.entity_type
        why = _match_problem(component)
        if not kind:
            why = "Invalid empty entity type."
        elif kind in seen:
            why = f"Entity type {kind} cannot appear more than once in the filter."
        if why is not None:
            return ErrorCode.invalid_request, why
        if kind not in TYPES:
            return ErrorCode.unsupported_version, f"Unsupported entity type {kind}"
        seen.add(kind)
    if IP in seen and len(seen) > 1:
        return ErrorCode.invalid_request, (
            "Invalid entity filter component combination. IP filter component should not be used with user or "
            "clientId filter component."
        )
    return None


def _match_problem(component: requests.ComponentData) -> str | None:
    if component.match_type not in _MATCH_TYPES:
        return f"Unknown match type {component.match_type}"
    match_type = MatchType(component.match_type)
    if match_type is MatchType.EXACT:
        return (
            None if component.match is not None else "Request specified MATCH_TYPE_EXACT, but set match string to null."
        )
    if component.match is not None:
        return f"Request specified MATCH_TYPE_{match_type.name}, but also specified a match string."
    return None
