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


def asked_filter(asked: requests.DescribeAclsRequest | requests.DeleteAclsFilter) -> AclFilter:
    """The filter of a DescribeAcls request, or of one element of DeleteAcls.

    :raises Disconnect: if it has a number that Kafka does not know; Kafka closes the connection, too.
    """
    found = AclFilter(
        asked.resource_type_filter,
        asked.pattern_type_filter,
        asked.resource_name_filter,
        asked.principal_filter,
        asked.host_filter,
        asked.operation,
        asked.permission_type,
    )
    if found.is_unknown:
        raise Disconnect("a filter of access rules contains UNKNOWN elements")
    return found


async def matching(ctx: Context, acls: Iterable[Acl], asked: AclFilter) -> list[Acl]:
    """Those of some rules that a filter matches, in their order."""
    return [acl async for acl in ctx.paced(acls) if asked.matches(acl)]


def entry(acl: Acl) -> Fields:
    """A rule's principal and what it may do, as answers have them."""
    return {
        "principal": acl.principal,
        "host": acl.host,
        "operation": acl.operation,
        "permission_type": acl.permission,
    }


def pattern(acl: Acl) -> Fields:
    """A rule's resources, as answers have them."""
    return {"resource_type": acl.resource_type, "resource_name": acl.name, "pattern_type": acl.pattern_type}


def shown(acl: Acl) -> str:
    """A rule as the audit log shows it."""
    kind, how = acl.resource_type.name, acl.pattern_type.name
    what = f"{acl.permission.name} {acl.operation.name} on {kind}:{how}:{acl.name}"
    return f"{what} to {acl.principal} from {acl.host}"
