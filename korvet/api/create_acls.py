"""CreateAcls (30), versions 1 to 3: add access rules. A rule that is there already is no error.

- 1: prefixed names   - 2: flexible   - 3: users as resources

Each rule of a request is checked by itself. The valid ones are added together: all of them, or none.

Source: AclApis.handleCreateAcls, AclControlManager.createAcls, validateNewAcl; KIP-140, KIP-290.
"""

from __future__ import annotations

from typing import Final

from kio.schema.errors import ErrorCode

from korvet.api import api
from korvet.api.shared import needs
from korvet.api.shared.acl_entries import DISABLED, Failure, needs_cluster, shown
from korvet.api.shared.admin import change_failure
from korvet.api.shared.changes import noted
from korvet.api.shared.context import Context
from korvet.errors import Disconnect, KorvetError
from korvet.security.acl import CLUSTER_NAME, Acl, Operation, PatternType, Permission, ResourceType
from korvet.security.authorizer import Authorizer
from korvet.security.stored_rules import MOST_CALL_BYTES, MOST_RULES
from korvet.wire import requests
from korvet.wire.writer import Fields

_DONE: Final[tuple[ErrorCode, str | None]] = ErrorCode.none, None
_TOO_MUCH: Final = (
    f"A rule is longer than 2048 bytes, or there would be more than {MOST_RULES} rules, or the request has more than "
    f"{MOST_CALL_BYTES >> 20} MiB of them. None was added."
)


def _failed(request: requests.CreateAclsRequest, failure: Failure) -> Fields:
    return {"results": [_result(*failure) for _ in request.creations]}


def _result(code: ErrorCode, message: str | None) -> Fields:
    return {"error_code": code, "error_message": message}


@api(30, 1, 3, needs=needs_cluster(needs.ALTER, _failed))
async def handle(ctx: Context, request: requests.CreateAclsRequest) -> Fields:
    problems, acls = [], dict[Acl, None]()
    async for requested in ctx.paced(request.creations):
        if _is_unknown(requested):
            raise Disconnect("access rules to be created contain unknown elements")
        problems.append(_problem(requested))
        if problems[-1] is None:
            acls[_acl(requested)] = None
    authorizer = ctx.frontend.authorizer
    if authorizer is None:
        return _failed(request, DISABLED)
    outcome = await _add(ctx, authorizer, list(acls))
    return {"results": [_result(*(outcome if problem is None else problem)) for problem in problems]}


async def _add(ctx: Context, authorizer: Authorizer, acls: list[Acl]) -> tuple[ErrorCode, str | None]:
    if not acls:
        return _DONE
    try:
        with noted(ctx, list(map(shown, acls)), is_security=True) as change:
            code = ErrorCode(await authorizer.add(acls))
            change.ended([code] * len(acls))
    except KorvetError as error:
        return change_failure(ctx, error)
    if code is ErrorCode.none:
        return _DONE
    return code, _TOO_MUCH if code is ErrorCode.policy_violation else "The rule is not valid."


def _is_unknown(requested: requests.AclCreation) -> bool:
    numbers = (
        (requested.resource_type, ResourceType),
        (requested.resource_pattern_type, PatternType),
        (requested.operation, Operation),
        (requested.permission_type, Permission),
    )
    return any(not 0 < number <= max(kind) for number, kind in numbers)


def _problem(requested: requests.AclCreation) -> Failure | None:
    """Why a rule is invalid; None if it is valid."""
    kind, how, by = (
        ResourceType(requested.resource_type),
        PatternType(requested.resource_pattern_type),
        requested.operation,
    )
    why = None
    if kind is ResourceType.CLUSTER and requested.resource_name != CLUSTER_NAME:
        why = f"The only valid name for the CLUSTER resource is {CLUSTER_NAME}"
    elif not requested.resource_name:
        why = "Invalid empty resource name"
    elif kind is ResourceType.ANY:
        why = "Invalid resourceType ANY"
    elif how not in (PatternType.LITERAL, PatternType.PREFIXED):
        why = f"Invalid patternType {how.name}"
    elif by == Operation.ANY:
        why = "Invalid operation ANY"
    elif requested.permission_type == Permission.ANY:
        why = "Invalid permissionType ANY"
    elif ":" not in requested.principal:
        why = (
            f"Could not parse principal from `{requested.principal}` (no colon is present separating the principal "
            "type from the principal name)"
        )
    elif not requested.host:
        why = "Invalid empty host"
    return None if why is None else (ErrorCode.invalid_request, why)


def _acl(requested: requests.AclCreation) -> Acl:
    return Acl(
        ResourceType(requested.resource_type),
        PatternType(requested.resource_pattern_type),
        requested.resource_name,
        requested.principal,
        requested.host,
        Operation(requested.operation),
        Permission(requested.permission_type),
    )
