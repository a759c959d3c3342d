"""Access rules and filters in requests and answers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from kio.schema.errors import ErrorCode

from korvet.api.shared.context import Context
from korvet.api.shared.needs import Check, Narrowed, R, refusal
from korvet.errors import Disconnect
from korvet.security.acl import Acl, AclFilter, Operation
from korvet.security.rights import Rights
from korvet.wire import requests
from korvet.wire.writer import Fields

Failure = tuple[ErrorCode, str]
DISABLED: Final[Failure] = ErrorCode.security_disabled, "No Authorizer is configured."
FORBIDDEN: Final[Failure] = ErrorCode.cluster_authorization_failed, "Cluster authorization failed."


def needs_cluster(operation: Operation, failed: Callable[[R, Failure], Fields]) -> Check[R]:
    """The check of the right to describe or change access rules."""

    def check(_ctx: Context, rights: Rights, request: R) -> Narrowed | None:
        return None if rights.allows_on_cluster(operation) else refusal(failed(request, FORBIDDEN))

    return check


def requested_filter(requested: requests.DescribeAclsRequest | requests.DeleteAclsFilter) -> AclFilter:
    """The filter of a DescribeAcls request, or of one element of DeleteAcls.

    :raises Disconnect: if it has a number that Kafka does not know; Kafka closes the connection, too.
    """
    found = AclFilter(
        requested.resource_type_filter,
        requested.pattern_type_filter,
        requested.resource_name_filter,
        requested.principal_filter,
        requested.host_filter,
        requested.operation,
        requested.permission_type,
    )
    if found.is_unknown:
        raise Disconnect("a filter of access rules contains UNKNOWN elements")
    return found


async def matching(ctx: Context, acls: Iterable[Acl], requested: AclFilter) -> list[Acl]:
    """The rules that a filter matches, in their order."""
    return [acl async for acl in ctx.paced(acls) if requested.matches(acl)]


def entry(acl: Acl) -> Fields:
    """A rule's principal, operation and permission, as answers show them."""
    return {
        "principal": acl.principal,
        "host": acl.host,
        "operation": acl.operation,
        "permission_type": acl.permission,
    }


def pattern(acl: Acl) -> Fields:
    """A rule's resources, as answers show them."""
    return {"resource_type": acl.resource_type, "resource_name": acl.name, "pattern_type": acl.pattern_type}


def shown(acl: Acl) -> str:
    """A rule as the audit log shows it."""
    kind, how = acl.resource_type.name, acl.pattern_type.name
    what = f"{acl.permission.name} {acl.operation.name} on {kind}:{how}:{acl.name}"
    return f"{what} to {acl.principal} from {acl.host}"
