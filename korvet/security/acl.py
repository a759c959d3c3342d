"""Access rules, and filters of them.

A rule allows or denies one operation to one principal, from one host or all, on the resources with a name or a prefix.
`korvet.security.rules` applies them.

Source: org.apache.kafka.metadata.authorizer.StandardAcl, org.apache.kafka.common.acl.AclBindingFilter
"""

from __future__ import annotations

from enum import IntEnum
from functools import lru_cache
from ipaddress import IPv6Address, ip_address
from typing import Final, NamedTuple


class ResourceType(IntEnum):
    """org.apache.kafka.common.resource.ResourceType"""

    UNKNOWN = 0
    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class PatternType(IntEnum):
    """org.apache.kafka.common.resource.PatternType"""

    UNKNOWN = 0
    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class Operation(IntEnum):
    """org.apache.kafka.common.acl.AclOperation"""

    UNKNOWN = 0
    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class Permission(IntEnum):
    """org.apache.kafka.common.acl.AclPermissionType"""

    UNKNOWN = 0
    ANY = 1
    DENY = 2
    ALLOW = 3


WILDCARD: Final = "*"
WILDCARD_PRINCIPAL: Final = "User:*"
CLUSTER_NAME: Final = "kafka-cluster"

OPERATIONS: Final = {
    ResourceType.TOPIC: sum(1 << operation for operation in (3, 4, 5, 6, 7, 8, 10, 11)),
    ResourceType.GROUP: sum(1 << operation for operation in (3, 6, 8, 10, 11)),
    ResourceType.CLUSTER: sum(1 << operation for operation in (5, 7, 8, 9, 10, 11, 12)),
}
"""The operations of a resource type that authorized_operations may hold, as bits (AclEntry.supportedOperations)."""


class Acl(NamedTuple):
    """One rule. ``principal`` is like ``User:alice``; ``host`` is an address or ``*``."""

    resource_type: ResourceType
    pattern_type: PatternType
    name: str
    principal: str
    host: str
    operation: Operation
    permission: Permission


class AclFilter(NamedTuple):
    """Conditions on rules. None and ANY match every rule; MATCH selects the rules that apply to a name."""

    resource_type: int
    pattern_type: int
    name: str | None
    principal: str | None
    host: str | None
    operation: int
    permission: int

    @property
    def is_unknown(self) -> bool:
        """True if the filter has a value that this version of Kafka lacks."""
        kinds = ((self.resource_type, ResourceType), (self.pattern_type, PatternType), (self.operation, Operation))
        return any(not 0 < one <= max(kind) for one, kind in (*kinds, (self.permission, Permission)))

    def matches(self, acl: Acl) -> bool:
        """True if a rule meets all conditions (AclBindingFilter.matches)."""
        return (
            self.resource_type in (ResourceType.ANY, acl.resource_type)
            and self._matches_name(acl)
            and self.principal in (None, acl.principal)
            and self.host in (None, acl.host)
            and self.operation in (Operation.ANY, acl.operation)
            and self.permission in (Permission.ANY, acl.permission)
        )

    def _matches_name(self, acl: Acl) -> bool:
        if self.pattern_type not in (PatternType.ANY, PatternType.MATCH, acl.pattern_type):
            return False
        if self.name is None or self.name == acl.name:
            return True
        if self.pattern_type != PatternType.MATCH:
            return False
        if acl.pattern_type is PatternType.PREFIXED:
            return self.name.startswith(acl.name)
        return acl.name == WILDCARD


@lru_cache(maxsize=1024)
def canonical_host(host: str) -> str:
    """An address in its normal spelling: ``::1`` for ``0:0:0:0:0:0:0:1``, and IPv4 for an address mapped into IPv6."""
    try:
        address = ip_address(host)
    except ValueError:
        return host
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(address)
