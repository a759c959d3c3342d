"""Access rules and their judgement, without I/O.

A rule allows or denies one operation to one principal, from one host or from all, on the resources of a name or of a
prefix. The order of judgement is Kafka's:

1. A matching rule that denies decides.
2. A matching rule that allows decides. READ, WRITE, DELETE and ALTER allow DESCRIBE too, ALTER_CONFIGS allows
   DESCRIBE_CONFIGS, and ALL allows everything. Denials imply nothing but by ALL.
3. A resource without any rule is open if ``allow.everyone.if.no.acl.found`` says so.

Super users are the authorizer's matter (`korvet.security.authorizer`).

Source: org.apache.kafka.metadata.authorizer.StandardAuthorizerData, StandardAcl; Authorizer.authorizeByResourceType
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
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
    ResourceType.TOPIC: tuple(map(Operation, (3, 4, 5, 6, 7, 8, 10, 11))),
    ResourceType.GROUP: tuple(map(Operation, (3, 6, 8, 10, 11))),
    ResourceType.CLUSTER: tuple(map(Operation, (5, 7, 8, 9, 10, 11, 12))),
}
"""The operations of a resource type that authorized_operations may tell (AclEntry.supportedOperations)."""

_ALLOWED_BY: Final = {
    Operation.DESCRIBE: frozenset(
        {Operation.DESCRIBE, Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER, Operation.ALL}
    ),
    Operation.DESCRIBE_CONFIGS: frozenset({Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS, Operation.ALL}),
}


class Acl(NamedTuple):
    """One rule. ``principal`` is text as ``User:alice``, ``host`` an address or ``*``."""

    resource_type: ResourceType
    pattern_type: PatternType
    name: str
    principal: str
    host: str
    operation: Operation
    permission: Permission


class AclFilter(NamedTuple):
    """Conditions that rules may meet; None and ANY are met by all. MATCH asks for the rules that apply to a name."""

    resource_type: int
    pattern_type: int
    name: str | None
    principal: str | None
    host: str | None
    operation: int
    permission: int

    @property
    def is_unknown(self) -> bool:
        """Whether the filter has a value that this Kafka does not know."""
        kinds = ((self.resource_type, ResourceType), (self.pattern_type, PatternType), (self.operation, Operation))
        return any(not 0 < one <= max(kind) for one, kind in (*kinds, (self.permission, Permission)))

    def matches(self, acl: Acl) -> bool:
        """Whether a rule meets all conditions (AclBindingFilter.matches)."""
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
    """An address in one spelling: ``::1`` of ``0:0:0:0:0:0:0:1``, and an IPv4 address for one mapped into IPv6."""
    try:
        address = ip_address(host)
    except ValueError:
        return host
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(address)


def allowed_by(operation: Operation) -> frozenset[Operation]:
    """The operations of allowing rules that allow an operation."""
    return _ALLOWED_BY.get(operation) or frozenset({operation, Operation.ALL})


class Judgement(NamedTuple):
    """Whether an action is allowed, and the rule that says so, if one does."""

    is_allowed: bool
    rule: Acl | None


_DENIED: Final = Judgement(False, None)


class _Names:
    """The rules for one resource type: by literal name, and by prefix for each length of one."""

    __slots__ = ("lengths", "literals", "prefixes")

    def __init__(self) -> None:
        self.literals: dict[str, list[Acl]] = {}
        self.prefixes: dict[str, list[Acl]] = {}
        self.lengths: list[int] = []

    def add(self, acl: Acl) -> None:
        names = self.literals if acl.pattern_type is PatternType.LITERAL else self.prefixes
        names.setdefault(acl.name, []).append(acl)

    def sort(self) -> None:
        self.lengths = sorted({len(prefix) for prefix in self.prefixes})

    def of(self, name: str) -> Iterator[list[Acl]]:
        """The rules whose patterns match a name."""
        if name in self.literals:
            yield self.literals[name]
        if name != WILDCARD and WILDCARD in self.literals:
            yield self.literals[WILDCARD]
        for length in self.lengths:
            if length > len(name):
                break
            found = self.prefixes.get(name[:length])
            if found is not None:
                yield found

    def all(self) -> Iterator[Acl]:
        for names in (self.literals, self.prefixes):
            for acls in names.values():
                yield from acls


class Rules:
    """An unchanging set of rules with an index."""

    def __init__(self, acls: Iterable[Acl] = ()) -> None:
        self.acls = frozenset(acls)
        self._types: dict[int, _Names] = {}
        for acl in sorted(self.acls):
            self._types.setdefault(acl.resource_type, _Names()).add(acl)
        for names in self._types.values():
            names.sort()

    def denies_some(self, principal: str, host: str, operation: Operation, resource_type: ResourceType) -> bool:
        """Whether a rule denies an action on any resource of a type."""
        return any(
            acl.permission is Permission.DENY
            and acl.resource_type is resource_type
            and acl.operation in (operation, Operation.ALL)
            and _concerns(acl, principal, host)
            for acl in self.acls
        )

    def judge(
        self,
        principal: str,
        host: str,
        operation: Operation,
        resource_type: ResourceType,
        name: str,
        *,
        is_open: bool = False,
    ) -> Judgement:
        """Judge an action.

        :param host: in `canonical_host`'s spelling.
        :param is_open: whether a resource without any rule is open to everyone.
        """
        names = self._types.get(resource_type)
        if names is None:
            return Judgement(is_open, None)
        allowing, allowed, has_rules = allowed_by(operation), None, False
        for acls in names.of(name):
            has_rules = True
            for acl in acls:
                if not _concerns(acl, principal, host):
                    continue
                if acl.permission is Permission.DENY:
                    if acl.operation in (operation, Operation.ALL):
                        return Judgement(False, acl)
                elif allowed is None and acl.operation in allowing:
                    allowed = acl
        if allowed is not None:
            return Judgement(True, allowed)
        return Judgement(True, None) if is_open and not has_rules else _DENIED

    def judge_any(self, principal: str, host: str, operation: Operation, resource_type: ResourceType) -> bool:
        """Whether an operation is allowed on some resource of a type (Authorizer.authorizeByResourceType).

        As in Kafka, no operation implies another one here.
        """
        names = self._types.get(resource_type)
        if names is None:
            return False
        concerned = [
            acl
            for acl in names.all()
            if acl.operation in (operation, Operation.ALL) and _concerns(acl, principal, host)
        ]
        denied = [acl for acl in concerned if acl.permission is Permission.DENY]
        literals = {acl.name for acl in denied if acl.pattern_type is PatternType.LITERAL}
        prefixes = {acl.name for acl in denied if acl.pattern_type is PatternType.PREFIXED}
        if WILDCARD in literals:
            return False
        return any(_is_undominated(acl, literals, prefixes) for acl in concerned if acl.permission is Permission.ALLOW)


def _concerns(acl: Acl, principal: str, host: str) -> bool:
    if acl.principal not in (principal, WILDCARD_PRINCIPAL):
        return False
    return acl.host == WILDCARD or canonical_host(acl.host) == host


def _is_undominated(acl: Acl, literals: set[str], prefixes: set[str]) -> bool:
    """Whether no denial covers all resources that a rule allows."""
    if acl.pattern_type is PatternType.LITERAL:
        if acl.name == WILDCARD:
            return True
        if acl.name in literals:
            return False
    return not any(acl.name[:length] in prefixes for length in range(1, len(acl.name) + 1))
