"""Access rules over the wire: CreateAcls, DescribeAcls and DeleteAcls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kio.schema.create_acls.v3 import CreateAclsRequest, CreateAclsResponse
from kio.schema.create_acls.v3.request import AclCreation
from kio.schema.delete_acls.v3 import DeleteAclsRequest, DeleteAclsResponse
from kio.schema.delete_acls.v3.request import DeleteAclsFilter
from kio.schema.delete_acls.v3.response import DeleteAclsMatchingAcl
from kio.schema.describe_acls.v3 import DescribeAclsRequest, DescribeAclsResponse
from kio.schema.describe_acls.v3.response import AclDescription, DescribeAclsResource
from kio.static.primitive import i8

from korvet.cli.kafka.client import Client
from korvet.cli.kafka.errors import BrokerError, check
from korvet.security.acl import Acl, AclFilter, Operation, PatternType, Permission, ResourceType


class KafkaRules:
    """The access rules of the namespace that a listener serves.

    :raises BrokerError: every method, if the broker refuses.
    """

    def __init__(self, client: Client) -> None:
        self._client = client

    def add(self, rules: Sequence[Acl]) -> None:
        """Add rules; those that are there stay."""
        request = CreateAclsRequest(creations=tuple(map(_creation, rules)))
        answer = self._client.ask_controller(request, CreateAclsResponse)
        for result in answer.results:
            check(result.error_code, "access rules", result.error_message)

    def find(self, filters: Sequence[AclFilter]) -> list[Acl]:
        """The rules that match a filter, in order."""
        found = set[Acl]()
        for one in filters:
            answer = self._client.ask(DescribeAclsRequest(**_conditions(one)), DescribeAclsResponse)
            check(answer.error_code, "access rules", answer.error_message)
            found.update(_rule(resource, acl) for resource in answer.resources for acl in resource.acls)
        return sorted(found)

    def remove(self, filters: Sequence[AclFilter]) -> list[Acl]:
        """Remove the rules that match a filter; returns them in order."""
        request = DeleteAclsRequest(filters=tuple(DeleteAclsFilter(**_conditions(one)) for one in filters))
        answer = self._client.ask_controller(request, DeleteAclsResponse)
        found = set[Acl]()
        for result in answer.filter_results:
            check(result.error_code, "access rules", result.error_message)
            for acl in result.matching_acls:
                check(acl.error_code, "access rules", acl.error_message)
                found.add(_rule(acl, acl))
        return sorted(found)


def _rule(resource: DescribeAclsResource | DeleteAclsMatchingAcl, acl: AclDescription | DeleteAclsMatchingAcl) -> Acl:
    """The rule of an answer.

    :raises BrokerError: if it has a number that korvet does not know.
    """
    try:
        return Acl(
            ResourceType(resource.resource_type),
            PatternType(resource.pattern_type),
            resource.resource_name,
            acl.principal,
            acl.host,
            Operation(acl.operation),
            Permission(acl.permission_type),
        )
    except ValueError as error:
        raise BrokerError(f"the broker has an access rule that this korvet does not know: {error}") from None


def _creation(rule: Acl) -> AclCreation:
    return AclCreation(
        resource_type=i8(rule.resource_type),
        resource_name=rule.name,
        resource_pattern_type=i8(rule.pattern_type),
        principal=rule.principal,
        host=rule.host,
        operation=i8(rule.operation),
        permission_type=i8(rule.permission),
    )


def _conditions(one: AclFilter) -> dict[str, Any]:
    """A filter's fields, which both requests name alike."""
    return {
        "resource_type_filter": i8(one.resource_type),
        "resource_name_filter": one.name,
        "pattern_type_filter": i8(one.pattern_type),
        "principal_filter": one.principal,
        "host_filter": one.host,
        "operation": i8(one.operation),
        "permission_type": i8(one.permission),
    }
