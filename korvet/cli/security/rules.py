"""Access rules and filters from the flags of ``korvet acls``, which are kafka-acls' flags.

Source: AclCommand, AclEntry.supportedOperations
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from itertools import product
from typing import Final, TypeVar

from korvet.errors import ConfigError
from korvet.security.acl import (
    CLUSTER_NAME,
    OPERATIONS,
    WILDCARD,
    Acl,
    AclFilter,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)
from korvet.security.principal import Principal

_OF_TYPE: Final[Mapping[ResourceType, tuple[Operation, ...]]] = {
    **{kind: tuple(one for one in Operation if bits >> one & 1) for kind, bits in OPERATIONS.items()},
    ResourceType.TRANSACTIONAL_ID: (Operation.WRITE, Operation.DESCRIBE, Operation.TWO_PHASE_COMMIT),
}
_PRODUCER: Final = {
    ResourceType.TOPIC: (Operation.WRITE, Operation.DESCRIBE, Operation.CREATE),
    ResourceType.TRANSACTIONAL_ID: (Operation.WRITE, Operation.DESCRIBE),
}
_CONSUMER: Final = {ResourceType.TOPIC: (Operation.READ, Operation.DESCRIBE), ResourceType.GROUP: (Operation.READ,)}
_WORDS: Final = {one.name.replace("_", ""): one for one in Operation if one > Operation.ANY}

Resource = tuple[ResourceType, str]
Host = TypeVar("Host", str, str | None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Words:
    """The flags of ``korvet acls``, as they were given."""

    topics: Sequence[str] = ()
    groups: Sequence[str] = ()
    transactional_ids: Sequence[str] = ()
    cluster: bool = False
    pattern_type: str = "literal"
    allowed: Sequence[str] = ()
    denied: Sequence[str] = ()
    allowed_hosts: Sequence[str] = ()
    denied_hosts: Sequence[str] = ()
    operations: Sequence[str] = ()
    producer: bool = False
    consumer: bool = False

    @property
    def resources(self) -> list[Resource]:
        named = [
            (ResourceType.TOPIC, self.topics),
            (ResourceType.GROUP, self.groups),
            (ResourceType.TRANSACTIONAL_ID, self.transactional_ids),
            (ResourceType.CLUSTER, [CLUSTER_NAME] if self.cluster else []),
        ]
        found = [(kind, name) for kind, names in named for name in names]
        if any(not name for _, name in found):
            raise ConfigError("the name of a resource may not be empty; * stands for all names")
        return found


def rules_of(words: Words) -> list[Acl]:
    """The rules that the flags of ``add`` mean, each once.

    :raises ConfigError: if they mean none, or one that no authorizer would take.
    """
    _check(words)
    if not words.resources:
        raise ConfigError("name what the rules are for: --topic, --group, --transactional-id or --cluster")
    subjects = [
        *_subjects(Permission.ALLOW, words.allowed, words.allowed_hosts or [WILDCARD]),
        *_subjects(Permission.DENY, words.denied, words.denied_hosts or [WILDCARD]),
    ]
    if not subjects:
        raise ConfigError("name whom the rules are for: --allow-principal or --deny-principal, such as User:alice")
    pattern = PatternType[words.pattern_type.upper()]
    rules = [
        Acl(kind, _pattern_of(kind, pattern), name, principal, host, operation, permission)
        for (kind, name, operation), (permission, principal, host) in product(_actions(words), subjects)
    ]
    return list(dict.fromkeys(rules))


def filters_of(words: Words, principals: Sequence[str] = ()) -> list[AclFilter]:
    """The filters of the flags of ``list`` or ``remove``; a missing flag leaves its field open.

    :param principals: principals whose rules may allow or deny.
    :raises ConfigError: if a flag is wrong.
    """
    _check(words)
    subjects: list[tuple[Permission, str | None, str | None]] = [
        *_subjects(Permission.ALLOW, words.allowed, words.allowed_hosts or [None]),
        *_subjects(Permission.DENY, words.denied, words.denied_hosts or [None]),
        *_subjects(Permission.ANY, principals, [None]),
    ]
    pattern = PatternType[words.pattern_type.upper()]
    wanted: list[tuple[ResourceType, str | None, PatternType, Operation]]
    if not words.resources:
        operations = [_operation(word) for word in words.operations] or [Operation.ANY]
        wanted = [(ResourceType.ANY, None, PatternType.ANY, operation) for operation in operations]
    else:
        # Without operations a filter takes rules for any.
        actions = _actions(words, default=Operation.ANY)
        wanted = [(kind, name, _pattern_of(kind, pattern), operation) for kind, name, operation in actions]
    return [
        AclFilter(kind, how, name, principal, host, operation, permission)
        for (kind, name, how, operation), (permission, principal, host) in product(
            wanted, subjects or [(Permission.ANY, None, None)]
        )
    ]


def _check(words: Words) -> None:
    for allowed, hosts, flag in (
        (words.allowed, words.allowed_hosts, "allow"),
        (words.denied, words.denied_hosts, "deny"),
    ):
        if hosts and not allowed:
            raise ConfigError(f"--{flag}-host goes with --{flag}-principal")
    for host in (*words.allowed_hosts, *words.denied_hosts):
        _check_host(host)
    if not (words.producer or words.consumer):
        return
    flag = "--producer" if words.producer else "--consumer"
    if words.operations or words.denied or words.cluster:
        raise ConfigError(
            f"{flag} stands for operations that are allowed; leave --operation, --deny-… and --cluster out"
        )
    if not words.topics or (words.consumer and not words.groups):
        raise ConfigError(f"{flag} goes with --topic" + (" and --group" if words.consumer else ""))


def _check_host(host: str) -> None:
    if host == WILDCARD:
        return
    try:
        ip_address(host)
    except ValueError:
        raise ConfigError(f"host {host!r}: rules name one address, such as 10.0.0.7, or * for all") from None


def _subjects(
    permission: Permission, principals: Iterable[str], hosts: Sequence[Host]
) -> list[tuple[Permission, str, Host]]:
    return [(permission, _principal(text), host) for text in principals for host in hosts]


def _principal(text: str) -> str:
    try:
        return str(Principal.parse(text))
    except ValueError as error:
        raise ConfigError(str(error)) from None


def _pattern_of(kind: ResourceType, pattern: PatternType) -> PatternType:
    """The cluster has only its own name, so no pattern applies to it."""
    return PatternType.LITERAL if kind is ResourceType.CLUSTER and pattern is PatternType.PREFIXED else pattern


def _actions(words: Words, default: Operation = Operation.ALL) -> list[tuple[ResourceType, str, Operation]]:
    """Each resource with each operation that the words name for it."""
    if words.producer or words.consumer:
        roles = [role for role, is_set in ((_PRODUCER, words.producer), (_CONSUMER, words.consumer)) if is_set]
        pairs = [(kind, name, one) for kind, name in words.resources for role in roles for one in role.get(kind, ())]
        return list(dict.fromkeys(pairs))
    operations = [_operation(word) for word in words.operations] or [default]
    for (kind, _), operation in product(words.resources, operations):
        if operation > Operation.ALL and operation not in _OF_TYPE[kind]:
            known = ", ".join(word_of(one) for one in (Operation.ALL, *_OF_TYPE[kind]))
            raise ConfigError(f"{word_of(operation)} is no operation of a {_resource_word(kind)}; want one of {known}")
    return [(kind, name, operation) for (kind, name), operation in product(words.resources, operations)]


def _resource_word(kind: ResourceType) -> str:
    return kind.name.lower().replace("_", " ")


def _operation(word: str) -> Operation:
    found = _WORDS.get(word.upper().replace("-", "").replace("_", ""))
    if found is None:
        raise ConfigError(f"{word!r} is no operation; want one of {', '.join(map(word_of, _WORDS.values()))}")
    return found


def word_of(operation: Operation) -> str:
    """An operation as Kafka's tools write it: Read, DescribeConfigs."""
    return operation.name.title().replace("_", "")
