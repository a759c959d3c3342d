"""The evaluation of access rules, without I/O, in Kafka's order:

1. A matching rule that denies decides.
2. A matching rule that allows decides. READ, WRITE, DELETE and ALTER allow DESCRIBE too, ALTER_CONFIGS allows
   DESCRIBE_CONFIGS, and ALL allows everything. Of denials only ALL implies others.
3. A resource without any rule is open if ``allow.everyone.if.no.acl.found`` says so.

A check costs the same with one rule for a name and with ten thousand: for each name and prefix, the index has the
operations by principal and host. Only nested prefixes add to the cost (`Rules.nesting`).

`korvet.security.authorizer` handles super users.

Source: org.apache.kafka.metadata.authorizer.StandardAuthorizerData; Authorizer.authorizeByResourceType
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from korvet.security.acl import (
    WILDCARD,
    WILDCARD_PRINCIPAL,
    Acl,
    Operation,
    PatternType,
    Permission,
    ResourceType,
    canonical_host,
)

Operations = int
"""A set of operations: bit n for the operation with number n."""
EVERYTHING: Final[Operations] = sum(1 << operation for operation in Operation if operation > Operation.ANY)
_ALSO: Final = {
    Operation.ALL: EVERYTHING,
    Operation.READ: 1 << Operation.DESCRIBE,
    Operation.WRITE: 1 << Operation.DESCRIBE,
    Operation.DELETE: 1 << Operation.DESCRIBE,
    Operation.ALTER: 1 << Operation.DESCRIBE,
    Operation.ALTER_CONFIGS: 1 << Operation.DESCRIBE_CONFIGS,
}
"""The operations that an allowed operation implies."""
Subject = tuple[str, str]
"""The subject of a rule: a principal or ``User:*``, and a canonical host or ``*``."""


class Client(NamedTuple):
    """A client, with the subjects of the rules that concern it."""

    principal: str
    host: str
    subjects: tuple[Subject, ...]

    @classmethod
    def of(cls, principal: str, host: str) -> Client:
        """The client of a principal, such as ``User:alice``, and an address in any spelling."""
        host = canonical_host(host)
        subjects = ((one, where) for one in (principal, WILDCARD_PRINCIPAL) for where in (host, WILDCARD))
        return cls(principal, host, tuple(dict.fromkeys(subjects)))


class _Said:
    """The rules of one name or prefix for one subject."""

    __slots__ = ("acls", "allowed", "denied")

    def __init__(self) -> None:
        self.allowed: Operations = 0
        self.denied: Operations = 0
        self.acls: list[Acl] = []

    def add(self, acl: Acl) -> None:
        self.acls.append(acl)
        also = _ALSO.get(acl.operation, 0)
        if acl.permission is Permission.ALLOW:
            self.allowed |= 1 << acl.operation | also
        else:
            self.denied |= 1 << acl.operation | (also if acl.operation is Operation.ALL else 0)


_Pattern = dict[Subject, _Said]


class Prefixes:
    """Sorted prefixes, each with the longest other one that it begins with."""

    def __init__(self, prefixes: Iterable[str]) -> None:
        self._sorted = sorted(set(prefixes))
        self._outer: list[int] = []
        self.nesting = 0
        """The most prefixes that one name may begin with."""
        around: list[int] = []
        for at, prefix in enumerate(self._sorted):
            while around and not prefix.startswith(self._sorted[around[-1]]):
                around.pop()
            self._outer.append(around[-1] if around else -1)
            around.append(at)
            self.nesting = max(self.nesting, len(around))

    def of(self, name: str) -> Iterator[str]:
        """The prefixes with which a name begins, longest first."""
        # All prefixes sorted between the longest match and the name begin with that match: so the walk finds it.
        at = bisect_right(self._sorted, name) - 1
        while at >= 0:
            if name.startswith(self._sorted[at]):
                yield self._sorted[at]
            at = self._outer[at]


class _Names:
    """The rules for one resource type, by literal name and by prefix."""

    def __init__(self) -> None:
        self.literals: dict[str, _Pattern] = {}
        self.prefixes: dict[str, _Pattern] = {}
        self.order = Prefixes(())

    def add(self, acl: Acl, subject: Subject) -> None:
        names = self.literals if acl.pattern_type is PatternType.LITERAL else self.prefixes
        said = names.setdefault(acl.name, {}).get(subject)
        if said is None:
            said = names[acl.name][subject] = _Said()
        said.add(acl)

    def of(self, name: str) -> Iterator[_Pattern]:
        """The patterns that match a name."""
        literal = self.literals.get(name)
        if literal is not None:
            yield literal
        if name != WILDCARD:
            everything = self.literals.get(WILDCARD)
            if everything is not None:
                yield everything
        for prefix in self.order.of(name) if self.prefixes else ():
            yield self.prefixes[prefix]


class Rules:
    """An unchanging set of rules with an index; ``add`` and ``finish`` are for `korvet.security.stored_rules` alone.

    :ivar acls: the rules themselves.
    :ivar nesting: the most rules' prefixes that one name may begin with.
    """

    def __init__(self, acls: Iterable[Acl] = ()) -> None:
        self.acls: list[Acl] = []
        self.nesting = 0
        self._types: dict[int, _Names] = {}
        self._of_subject: dict[Subject, list[Acl]] = {}
        for acl in acls:
            self.acls.append(acl)
            self.add(acl)
        self.finish()

    def add(self, acl: Acl) -> None:
        """Add a rule to the index."""
        subject = (acl.principal, canonical_host(acl.host))
        self._types.setdefault(acl.resource_type, _Names()).add(acl, subject)
        self._of_subject.setdefault(subject, []).append(acl)

    def finish(self) -> None:
        """Sort the prefixes; call after the last `add`."""
        for names in self._types.values():
            names.order = Prefixes(names.prefixes)
            self.nesting = max(self.nesting, names.order.nesting)

    def allowed(self, client: Client, kind: ResourceType, name: str, *, is_open: bool = False) -> Operations:
        """The operations that a client may do on a resource.

        :param is_open: true if a resource without any rule is open to everyone.
        """
        names = self._types.get(kind)
        allowed = denied = 0
        has_rules = False
        for pattern in names.of(name) if names is not None else ():
            has_rules = True
            for subject in client.subjects:
                said = pattern.get(subject)
                if said is not None:
                    allowed |= said.allowed
                    denied |= said.denied
        if is_open and not has_rules:
            return EVERYTHING
        return allowed & ~denied

    def denying(self, client: Client, operation: Operation, kind: ResourceType, name: str) -> Acl | None:
        """A rule that denies an operation on a resource to a client, or None."""
        names = self._types.get(kind)
        for pattern in names.of(name) if names is not None else ():
            for subject in client.subjects:
                said = pattern.get(subject)
                if said is not None and said.denied & 1 << operation:
                    return next(acl for acl in said.acls if _denies(acl, operation))
        return None

    def denies_some(self, client: Client, operation: Operation, kind: ResourceType) -> bool:
        """True if a rule denies an operation to a client on any resource of a type."""
        return any(acl.resource_type is kind and _denies(acl, operation) for acl in self._concerning(client))

    def allows_some(self, client: Client, operation: Operation, kind: ResourceType) -> bool:
        """True if an operation is allowed on some resource of a type (Authorizer.authorizeByResourceType).

        As in Kafka, no operation implies another one here.
        """
        either = (operation, Operation.ALL)
        concerned = [acl for acl in self._concerning(client) if acl.resource_type is kind and acl.operation in either]
        denied = [acl for acl in concerned if acl.permission is Permission.DENY]
        literals = {acl.name for acl in denied if acl.pattern_type is PatternType.LITERAL}
        if WILDCARD in literals:
            return False
        prefixes = Prefixes(acl.name for acl in denied if acl.pattern_type is PatternType.PREFIXED)
        return any(_is_undominated(acl, literals, prefixes) for acl in concerned if acl.permission is Permission.ALLOW)

    def _concerning(self, client: Client) -> Iterator[Acl]:
        for subject in client.subjects:
            yield from self._of_subject.get(subject, ())


def _denies(acl: Acl, operation: Operation) -> bool:
    return acl.permission is Permission.DENY and acl.operation in (operation, Operation.ALL)


def _is_undominated(acl: Acl, literals: set[str], prefixes: Prefixes) -> bool:
    """True if no denial covers all resources that a rule allows."""
    if acl.pattern_type is PatternType.LITERAL:
        if acl.name == WILDCARD:
            return True
        if acl.name in literals:
            return False
    return next(prefixes.of(acl.name), None) is None
