"""DescribeAcls (29), versions 1 to 3: the access rules that a filter matches.

- 1: prefixed names   - 2: flexible   - 3: users as resources

Source: AclApis.handleDescribeAcls, StandardAuthorizerData.acls; KIP-140, KIP-290.
"""

from __future__ import annotations

from kio.schema.errors import ErrorCode

from korvet.api import api
from korvet.api.shared import needs
from korvet.api.shared.acl_entries import DISABLED, Failure, entry, matching, needs_cluster, pattern, requested_filter
from korvet.api.shared.admin import read_failure
from korvet.api.shared.context import Context
from korvet.errors import KorvetError
from korvet.wire import requests
from korvet.wire.writer import Fields


def _failed(_request: requests.DescribeAclsRequest, failure: Failure) -> Fields:
    code, message = failure
    return {"error_code": code, "error_message": message, "resources": ()}


@api(29, 1, 3, needs=needs_cluster(needs.DESCRIBE, _failed))
async def handle(ctx: Context, request: requests.DescribeAclsRequest) -> Fields:
    requested, authorizer = requested_filter(request), ctx.frontend.authorizer
    if authorizer is None:
        return _failed(request, (DISABLED[0], "No Authorizer is configured on the broker"))
    try:
        await authorizer.refresh()
    except KorvetError as error:
        return _failed(request, (read_failure(ctx, error, ErrorCode.request_timed_out), str(error)))
    resources: dict[tuple[int, int, str], Fields] = {}
    async for acl in ctx.paced(await matching(ctx, authorizer.acls, requested)):
        key = acl.resource_type, acl.pattern_type, acl.name
        if key not in resources:
            resources[key] = {**pattern(acl), "acls": []}
        resources[key]["acls"].append(entry(acl))
    return {"error_code": ErrorCode.none, "error_message": None, "resources": list(resources.values())}
