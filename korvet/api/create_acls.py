"""CreateAcls (30), versions 1 to 3: add access rules. A rule that is there already is no error.

- 1: prefixed names   - 2: flexible   - 3: users as resources

Each rule of a request is judged alone; the valid ones are added, a thousand at a time as one.

Source: AclApis.handleCreateAcls, AclControlManager.createAcls, validateNewAcl; KIP-140, KIP-290.
"""

from __future__ import annotations

from typing import Any, Final

from kio.schema.errors import ErrorCode

from korvet.api import api
from korvet.api.shared import needs
from korvet.api.shared.acl_entries import DISABLED, Failure, needs_cluster, shown
from korvet.api.shared.admin import change_failure
from korvet.api.shared.context import Context
from korvet.errors import Disconnect, KorvetError
from korvet.security.acl import CLUSTER_NAME, Acl, Operation, PatternType, Permission, ResourceType
from korvet.security.authorizer import Authorizer
from korvet.wire.codec import Fields

_DONE: Final[tuple[ErrorCode, str | None]] = ErrorCode.none, None
_TOO_MUCH: Final = "A rule is longer than 2048 bytes, or there would be more than 10000 rules."


def _failed(request: Any, failure: Failure) -> Fields:
    return {"results": [_result(*failure) for _ in request.creations]}


def _result(code: ErrorCode, message: str | None) -> Fields:
    return {"error_code": code, "error_message": message}


@api(30, 1, 3, needs=needs_cluster(needs.ALTER, _failed))
async def handle(ctx: Context, request: Any) -> Fields:
    if any(_is_unknown(asked) for asked in request.creations):
        raise Disconnect("access rules to be created contain unknown elements")
    authorizer = ctx.frontend.authorizer
    if authorizer is None:
        return _failed(request, DISABLED)
    problems = [_problem(asked) async for asked in ctx.paced(request.creations)]
    acls = [_acl(asked) for asked, problem in zip(request.creations, problems, strict=True) if problem is None]
    outcome = await _add(ctx, authorizer, list(dict.fromkeys(acls)))
    return {"results": [_result(*(outcome if problem is None else problem)) for problem in problems]}


async def _add(ctx: Context, authorizer: Authorizer, acls: list[Acl]) -> tuple[ErrorCode, str | None]:
    try:
        code = ErrorCode(await authorizer.add(acls))
    except KorvetError as error:
        return change_failure(ctx, error)
    if code is ErrorCode.policy_violation:
        return code, _TOO_MUCH
    if ctx.rights is not None and code is ErrorCode.none:
        for acl in acls:
            ctx.rights.note_change(rule=shown(acl))
    return (code, None) if code is ErrorCode.none else (code, "The rule is not valid.")


def _is_unknown(asked: Any) -> bool:
    numbers = (
        (asked.resource_type, ResourceType),
        (asked.resource_pattern_type, PatternType),
        (asked.operation, Operation),
        (asked.permission_type, Permission),
    )
    return any(not 0 < number <= max(kind) for number, kind in numbers)


def _problem(asked: Any) -> Failure | None:
    """Why a rule cannot be; None if it can."""
    kind, how, by = ResourceType(asked.resource_type), PatternType(asked.resource_pattern_type), asked.operation
    why = None
    if kind is ResourceType.CLUSTER and asked.resource_name != CLUSTER_NAME:
        why = f"The only valid name for the CLUSTER resource is {CLUSTER_NAME}"
    elif not asked.resource_name:
        why = "Invalid empty resource name"
    elif kind is ResourceType.ANY:
        why = "Invalid resourceType ANY"
    elif how not in (PatternType.LITERAL, PatternType.PREFIXED):
        why = f"Invalid patternType {how.name}"
    elif by == Operation.ANY:
        why = "Invalid operation ANY"
    elif asked.permission_type == Permission.ANY:
        why = "Invalid permissionType ANY"
    elif ":" not in asked.principal:
        why = (
            f"Could not parse principal from `{asked.principal}` (no colon is present separating the principal type "
            "from the principal name)"
        )
    elif not asked.host:
        why = "Invalid empty host"
    return None if why is None else (ErrorCode.invalid_request, why)


def _acl(asked: Any) -> Acl:
    return Acl(
        ResourceType(asked.resource_type),
        PatternType(asked.resource_pattern_type),
        asked.resource_name,
        asked.principal,
        asked.host,
        Operation(asked.operation),
        Permission(asked.permission_type),
    )
