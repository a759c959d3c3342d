"""Access rules of a running broker, written straight to its Redis, as an operator may."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import count

from korvet.security.acl import CLUSTER_NAME, Acl, Operation, PatternType, Permission, ResourceType
from korvet.security.authorizer import STANDARD
from korvet.security.stored_rules import encoded
from tests.api.raw import ask
from tests.support.broker import KorvetServer
from tests.support.waiting import until

TURNED_ON = {"authorizer.class.name": STANDARD}
KEY = "korvet:{default:@security}:acls"
CLUSTER = ResourceType.CLUSTER
ME = "User:ANONYMOUS"
_markers = (f"marker-{number}" for number in count())


def whole_budget() -> None:
    """Wait until the front-end may write as many lines of the audit log as it ever may within a second."""
    time.sleep(1.1)


def rule(
    kind: ResourceType,
    name: str,
    operation: Operation,
    permission: Permission = Permission.ALLOW,
    pattern: PatternType = PatternType.LITERAL,
    principal: str = ME,
    host: str = "*",
) -> Acl:
    """A rule, by default one that allows the operation to the tests' clients."""
    return Acl(kind, pattern, name, principal, host, operation, permission)


def on_cluster(operation: Operation) -> Acl:
    """A rule that allows the operation on the cluster."""
    return rule(CLUSTER, CLUSTER_NAME, operation)


def everything() -> Iterator[Acl]:
    """Rules that allow everything."""
    for kind in (ResourceType.TOPIC, ResourceType.GROUP, ResourceType.TRANSACTIONAL_ID):
        yield rule(kind, "*", Operation.ALL)
    yield on_cluster(Operation.ALL)


def set_rules(broker: KorvetServer, *rules: Acl) -> None:
    """Have these rules alone count, and wait until the front-end has read them.

    Two more rules show when that is so. One allows a group of a new name, and one denies another: either may have been
    so before, but not both.
    """
    allowed, denied = (
        rule(ResourceType.GROUP, next(_markers), Operation.DESCRIBE, permission)
        for permission in (Permission.ALLOW, Permission.DENY)
    )
    with broker.redis() as client:
        old = {text.decode() for text in client.hkeys(KEY) if text}
        gone = old - {encoded(one) for one in rules}
        if gone:
            client.fcall("korvet_acls_remove", 1, KEY, *gone)
        client.fcall("korvet_acls_add", 1, KEY, *map(encoded, (*rules, allowed, denied)))
    until(lambda: finds_group(broker, allowed.name) and not finds_group(broker, denied.name))


def finds_group(broker: KorvetServer, name: str) -> bool:
    """Whether the tests' clients may describe a group."""
    return bool(ask(broker.port, "find_coordinator", 3, key=name, key_type=0)["error_code"] == "NONE")
