"""DeleteAcls (31), versions 1 to 3: remove the access rules that filters match.

- 1: prefixed names   - 2: flexible   - 3: users as resources

The front-end reads the rules, and removes those that match. A rule that another client removes meanwhile is among the
matches, too. A rule that is added meanwhile stays.

Source: AclApis.handleDeleteAcls, AclControlManager.deleteAcls; KIP-140, KIP-290.
"""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from korvet.api import api
from korvet.api.shared import needs
from korvet.api.shared.acl_entries import (
    DISABLED,
    Failure,
    asked_filter,
    entry,
    matching,
    needs_cluster,
    pattern,
    shown,
)
from korvet.api.shared.admin import change_failure
from korvet.api.shared.context import Context
from korvet.errors import KorvetError
from korvet.wire.codec import Fields


def _failed(request: Any, failure: Failure) -> Fields:
    code, message = failure
    return {
        "filter_results": [{"error_code": code, "error_message": message, "matching_acls": ()} for _ in request.filters]
    }


@api(31, 1, 3, needs=needs_cluster(needs.ALTER, _failed))
async def handle(ctx: Context, request: Any) -> Fields:
    filters, authorizer = list(map(asked_filter, request.filters)), ctx.frontend.authorizer
    if authorizer is None:
        return _failed(request, DISABLED)
    try:
        await authorizer.refresh()
        # Each filter walks all rules, so the number of filters decides.
        matches = [matching(authorizer, one) async for one in ctx.frontend.turns.paced(filters, size=1)]
        acls = sorted({acl for found in matches for acl in found})
        await authorizer.remove(acls)
    except KorvetError as error:
        return _failed(request, change_failure(ctx, error))
    if ctx.rights is not None:
        for acl in acls:
            ctx.rights.note_change(rule=shown(acl))
    return {
        "filter_results": [
            {
                "error_code": ErrorCode.none,
                "error_message": None,
                "matching_acls": [
                    {"error_code": ErrorCode.none, "error_message": None, **pattern(acl), **entry(acl)} for acl in found
                ],
            }
            for found in matches
        ]
    }
