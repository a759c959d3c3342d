"""DeleteAcls (31), versions 1 to 3: remove the access rules that filters match.

- 1: prefixed names   - 2: flexible   - 3: users as resources

The front-end reads the rules, and removes all matches by one call. A rule that another client removes meanwhile is
among the matches, too. A rule that is added meanwhile stays. As in Kafka, the number of matches is bounded.

Source: AclApis.handleDeleteAcls, AclControlManager.deleteAcls; KIP-140, KIP-290.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from kio.schema.errors import ErrorCode

from korvet.api import api
from korvet.api.shared import needs
from korvet.api.shared.acl_entries import (
    DISABLED,
    Failure,
    entry,
    matching,
    needs_cluster,
    pattern,
    requested_filter,
    shown,
)
from korvet.api.shared.admin import change_failure
from korvet.api.shared.changes import noted
from korvet.api.shared.context import Context
from korvet.errors import KorvetError
from korvet.security.acl import Acl, AclFilter, PatternType
from korvet.security.stored_rules import MOST_CALL_BYTES, MOST_RULES
from korvet.wire import requests
from korvet.wire.writer import Fields

_TOO_MANY: Final[Failure] = (
    ErrorCode.policy_violation,
    f"The filters match more than {MOST_RULES} rules, or {MOST_CALL_BYTES >> 20} MiB of them. None was removed.",
)


def _failed(request: requests.DeleteAclsRequest, failure: Failure) -> Fields:
    code, message = failure
    return {
        "filter_results": [{"error_code": code, "error_message": message, "matching_acls": ()} for _ in request.filters]
    }


@api(31, 1, 3, needs=needs_cluster(needs.ALTER, _failed))
async def handle(ctx: Context, request: requests.DeleteAclsRequest) -> Fields:
    filters = [requested_filter(one) async for one in ctx.paced(request.filters)]
    authorizer = ctx.frontend.authorizer
    if authorizer is None:
        return _failed(request, DISABLED)
    try:
        await authorizer.refresh()
        matches = await _matches(ctx, authorizer.acls, filters)
        if matches is None:
            return _failed(request, _TOO_MANY)
        acls = list(dict.fromkeys(acl for found in matches for acl in found))
        if acls:
            with noted(ctx, list(map(shown, acls)), is_security=True) as change:
                code = await authorizer.remove(acls)
                change.ended([code] * len(acls))
            if code != 0:
                return _failed(request, _TOO_MANY)
    except KorvetError as error:
        return _failed(request, change_failure(ctx, error))
    return {"filter_results": [await _result(ctx, found) async for found in ctx.paced(matches)]}


async def _matches(ctx: Context, acls: Sequence[Acl], filters: Iterable[AclFilter]) -> list[list[Acl]] | None:
    """The rules that each filter matches; None if they are more than `MOST_RULES` together."""
    by_name: dict[str, list[Acl]] = {}
    for acl in acls:
        by_name.setdefault(acl.name, []).append(acl)
    matches: list[list[Acl]] = []
    left = MOST_RULES
    async for requested in ctx.paced(filters):
        is_of_name = requested.name is not None and requested.pattern_type != PatternType.MATCH
        found = await matching(ctx, by_name.get(requested.name or "", ()) if is_of_name else acls, requested)
        left -= len(found)
        if left < 0:
            return None
        matches.append(found)
    return matches


async def _result(ctx: Context, found: Iterable[Acl]) -> Fields:
    done = {"error_code": ErrorCode.none, "error_message": None}
    return {**done, "matching_acls": [{**done, **pattern(acl), **entry(acl)} async for acl in ctx.paced(found)]}
