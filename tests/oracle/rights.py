"""Clients with different rights.

Each client has names of its own, so that no client's requests change what another one is answered: a topic, a name
of no topic and no group, and a name of a group and of a transactional id. One topic and one name more belong to nobody.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from korvet.security.acl import CLUSTER_NAME, OPERATIONS, Acl, Operation, PatternType, Permission, ResourceType

TOPIC, GROUP, CLUSTER = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER
TRANSACTIONAL_ID = ResourceType.TRANSACTIONAL_ID
ALLOW, DENY = Permission.ALLOW, Permission.DENY
LITERAL, PREFIXED = PatternType.LITERAL, PatternType.PREFIXED
SECRET, NOBODYS = "nobodys-topic", "nobodys-missing"


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """A client and its rules.

    :ivar user: its principal is ``User:`` and this; all are equally long.
    """

    user: str
    title: str
    rules: tuple[Acl, ...] = ()

    @property
    def prefix(self) -> str:
        """What the names of its things begin with."""
        return f"{self.user}-"

    @property
    def names(self) -> Mapping[str, str]:
        """The names of its things, by the words of requests."""
        own = {word: self.prefix + word for word in ("t", "u", "g")}
        return {**own, "w": SECRET, "h": NOBODYS}


def _operations(kind: ResourceType) -> Iterator[Operation]:
    """ALL, and the operations of a resource type (AclEntry.supportedOperations)."""
    more = {TRANSACTIONAL_ID: 1 << Operation.DESCRIBE | 1 << Operation.WRITE | 1 << Operation.TWO_PHASE_COMMIT}
    supported_ones = more[kind] if kind in more else OPERATIONS[kind]
    return (one for one in Operation if one is Operation.ALL or supported_ones & 1 << one)


class _Rules:
    """Rules of one principal."""

    def __init__(self, user: str) -> None:
        self._user = user
        self.prefix = f"{user}-"

    def rule(
        self, kind: ResourceType, name: str, operation: Operation, permission: Permission = ALLOW, **other: Any
    ) -> Acl:
        usual = {"pattern_type": LITERAL, "principal": f"User:{self._user}", "host": "*"}
        return Acl(resource_type=kind, name=name, operation=operation, permission=permission, **{**usual, **other})

    def own(self, kind: ResourceType, operation: Operation, permission: Permission = ALLOW) -> tuple[Acl, ...]:
        """A right to the client's own things of a type, by their names."""
        words = {TOPIC: "tu", GROUP: "gu", TRANSACTIONAL_ID: "g"}
        names = [CLUSTER_NAME] if kind is CLUSTER else [self.prefix + word for word in words[kind]]
        return tuple(self.rule(kind, name, operation, permission) for name in names)

    def prefixed(self, permission: Permission) -> tuple[Acl, ...]:
        """All rights to the client's own things, or denials of them, by their prefix."""
        kinds = (TOPIC, GROUP, TRANSACTIONAL_ID)
        return tuple(self.rule(kind, self.prefix, Operation.ALL, permission, pattern_type=PREFIXED) for kind in kinds)

    def everything(self, **other: Any) -> tuple[Acl, ...]:
        kinds = (TOPIC, GROUP, TRANSACTIONAL_ID)
        return (
            *(self.rule(kind, "*", Operation.ALL, **other) for kind in kinds),
            self.rule(CLUSTER, CLUSTER_NAME, Operation.ALL, **other),
        )


def clients() -> list[Client]:
    """A client without a right, one with each single right, one with all but one, and some with other patterns."""
    found: list[Client] = []

    def add(title: str, make: Any) -> None:
        user = f"u{len(found) + 1:02}"
        found.append(Client(user=user, title=title, rules=tuple(make(_Rules(user)))))

    kinds = (TOPIC, GROUP, CLUSTER, TRANSACTIONAL_ID)
    every = [(kind, operation) for kind in kinds for operation in _operations(kind)]
    add("nothing", lambda _: ())
    add("everything", lambda of: of.everything())
    for kind, operation in every:
        add(f"{operation.name} on {kind.name}", lambda of, kind=kind, operation=operation: of.own(kind, operation))
        add(
            f"all but {operation.name} on {kind.name}",
            lambda of, kind=kind, operation=operation: (*of.everything(), *of.own(kind, operation, DENY)),
        )
    add("all by prefix", lambda of: of.prefixed(ALLOW))
    add("all but a prefix", lambda of: (*of.everything(), *of.prefixed(DENY)))
    add("all from another host", lambda of: of.everything(host="10.1.2.3"))
    add("all from this host", lambda of: of.everything(host="127.0.0.1"))
    add("all of another principal", lambda of: of.everything(principal="User:somebody"))
    add("all allowed and all denied", lambda of: (*of.everything(), *of.everything(permission=DENY)))
    return found


CLIENTS: Final = clients()
