"""Access rules over the wire: CreateAcls, DescribeAcls and DeleteAcls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from korvet.cli.kafka.client import Client
from korvet.cli.kafka.errors import BrokerError, check
from korvet.cli.kafka.framing import request
from korvet.security.acl import Acl, AclFilter, Operation, PatternType, Permission, ResourceType


class KafkaRules:
    """The access rules of the namespace that a listener serves.

    :raises BrokerError: every method, if the broker refuses.
    """

    def __init__(self, client: Client) -> None:
        self._client = client

    def add(self, rules: Sequence[Acl]) -> None:
        """Add rules; existing ones stay."""
        answer = self._client.ask_controller(request("create_acls", 3, creations=list(map(_creation, rules))))
        for result in answer.results:
            check(result.error_code, "access rules", result.error_message)

    def find(self, filters: Sequence[AclFilter]) -> list[Acl]:
        """The rules that match a filter, in order."""
        found = set[Acl]()
        for one in filters:
            answer = self._client.ask(request("describe_acls", 3, **_conditions(one)))
            check(answer.error_code, "access rules", answer.error_message)
            found.update(_rule(resource, acl) for resource in answer.resources for acl in resource.acls)
        return sorted(found)

    def remove(self, filters: Sequence[AclFilter]) -> list[Acl]:
        """Remove the rules that match a filter; returns them in order."""
        answer = self._client.ask_controller(request("delete_acls", 3, filters=list(map(_conditions, filters))))
        found = set[Acl]()
        for result in answer.filter_results:
            check(result.error_code, "access rules", result.error_message)
            for acl in result.matching_acls:
                check(acl.error_code, "access rules", acl.error_message)
                found.add(_rule(acl, acl))
        return sorted(found)


def _rule(resource: Any, acl: Any) -> Acl:
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


def _creation(rule: Acl) -> dict[str, Any]:
    return {
        "resource_type": rule.resource_type,
        "resource_name": rule.name,
        "resource_pattern_type": rule.pattern_type,
        "principal": rule.principal,
        "host": rule.host,
        "operation": rule.operation,
        "permission_type": rule.permission,
    }


def _conditions(one: AclFilter) -> dict[str, Any]:
    """A filter's fields, which both requests name alike."""
    return {
        "resource_type_filter": one.resource_type,
        "resource_name_filter": one.name,
        "pattern_type_filter": one.pattern_type,
        "principal_filter": one.principal,
        "host_filter": one.host,
        "operation": one.operation,
        "permission_type": one.permission,
    }
