"""DescribeClientQuotas (48), versions 0 and 1: the limits of users, clients and addresses. Korvet has none.

- 1: flexible

Korvet refuses the filters that Kafka refuses.

Source: KafkaApis.handleDescribeClientQuotasRequest, ClientQuotaCache.describeClientQuotas; KIP-546.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from typing import Any, Final

from kio.schema.errors import ErrorCode

from korvet.api import api
from korvet.api.shared import needs
from korvet.api.shared.context import Context
from korvet.wire.codec import Fields


class MatchType(IntEnum):
    """How a component of a filter matches (org.apache.kafka.common.requests.DescribeClientQuotasRequest)."""

    EXACT = 0
    DEFAULT = 1
    SPECIFIED = 2


_MATCH_TYPES: Final = frozenset(MatchType)
_IP: Final = "ip"
_ENTITY_TYPES: Final = frozenset({"user", "client-id", _IP})


@api(
    48,
    0,
    1,
    needs=needs.cluster(
        needs.DESCRIBE_CONFIGS,
        refused=lambda *_: {
            "error_code": ErrorCode.cluster_authorization_failed,
            "error_message": needs.MESSAGES[needs.CLUSTER],
            "entries": None,
        },
    ),
)
async def handle(_ctx: Context, request: Any) -> Fields:
    problem = _filter_problem(request.components)
    if problem is not None:
        code, message = problem
        return {"error_code": code, "error_message": message, "entries": None}
    return {"error_code": 0, "error_message": "", "entries": ()}


def _filter_problem(components: Iterable[Any]) -> tuple[ErrorCode, str] | None:
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
        if kind not in _ENTITY_TYPES:
            return ErrorCode.unsupported_version, f"Unsupported entity type {kind}"
        seen.add(kind)
    if _IP in seen and len(seen) > 1:
        return ErrorCode.invalid_request, (
            "Invalid entity filter component combination. IP filter component should not be used with user or "
            "clientId filter component."
        )
    return None


def _match_problem(component: Any) -> str | None:
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
