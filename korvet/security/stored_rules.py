"""The stored form of access rules: a JSON array with Kafka's numbers (``lua/6-security/acls.lua``).

An unreadable rule may come from a newer korvet, or be damaged. It allows nothing, but may have been a denial. So if all
seven parts are there, everything that they name is denied; else everything to everyone.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Iterable, Iterator, Sequence
from typing import Any, Final

import structlog

from korvet.security.acl import WILDCARD, WILDCARD_PRINCIPAL, Acl, Operation, PatternType, Permission, ResourceType
from korvet.security.rules import Rules

log = structlog.get_logger()

MOST_RULES: Final = 10_000
"""The most rules of a namespace, and of one call that adds or removes them."""
MOST_CALL_BYTES: Final = 4 << 20
"""The most bytes of such a call."""
SLICE: Final = 500
"""The number of rules read in one step, of 3 to 5 ms."""
LONGEST_SHOWN: Final = 200
_KINDS: Final = tuple(kind for kind in ResourceType if kind > ResourceType.ANY)
_PATTERNS: Final = (PatternType.LITERAL, PatternType.PREFIXED)
_OPERATIONS: Final = tuple(operation for operation in Operation if operation > Operation.ANY)
_PERMISSIONS: Final = (Permission.DENY, Permission.ALLOW)


def encoded(acl: Acl) -> str:
    """The stored text of a rule; equal rules have equal texts."""
    return json.dumps(acl, ensure_ascii=False, separators=(",", ":"))


def decoded(text: str) -> Acl | None:
    """The rule of a stored text; None if this version cannot read it."""
    parts = _parts(text)
    if parts is None:
        return None
    kind, pattern, name, principal, host, operation, permission = parts
    is_known = kind in _KINDS and pattern in _PATTERNS and operation in _OPERATIONS and permission in _PERMISSIONS
    return _acl(kind, pattern, name, principal, host, operation, permission) if is_known else None


def rules_in_steps(texts: Iterable[str]) -> Generator[None, None, Rules]:
    """The rules of stored texts, a few hundred a step."""
    rules, has_reported = Rules(), False
    # Sorted by text, the rules for one resource are adjacent.
    for number, text in enumerate(sorted(texts), 1):
        acl = decoded(text)
        if acl is not None:
            rules.acls.append(acl)
            rules.add(acl)
        else:
            for one in _feared(text):
                rules.add(one)
            if not has_reported:
                has_reported = True
                log.error("an access rule cannot be read; what it may deny is denied", rule=text[:LONGEST_SHOWN])
        if number % SLICE == 0:
            yield
    rules.finish()
    return rules


def _feared(text: str) -> Iterator[Acl]:
    """The denials that an unreadable rule may stand for."""
    parts = _parts(text)
    if parts is None:
        for kind in _KINDS:
            yield Acl(kind, PatternType.LITERAL, WILDCARD, WILDCARD_PRINCIPAL, WILDCARD, Operation.ALL, Permission.DENY)
        return
    kind, pattern, name, principal, host, operation, permission = parts
    # No request of this version names a resource type that it does not know.
    if permission == Permission.ALLOW or kind > max(_KINDS):
        return
    if pattern not in _PATTERNS:
        pattern, name = PatternType.LITERAL, WILDCARD
    if operation not in _OPERATIONS:
        operation = Operation.ALL
    for one in _KINDS if kind not in _KINDS else (kind,):
        yield _acl(one, pattern, name, principal, host, operation, Permission.DENY)


def _parts(text: str) -> Sequence[Any] | None:
    """The seven parts of a rule; None if one has the wrong type."""
    try:
        parts = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(parts, list) or len(parts) != len(Acl._fields):
        return None
    texts, numbers = parts[2:5], parts[:2] + parts[5:]
    is_whole = all(isinstance(one, str) and one for one in texts) and all(type(one) is int for one in numbers)
    return parts if is_whole else None


def _acl(kind: int, pattern: int, name: str, principal: str, host: str, operation: int, permission: int) -> Acl:
    return Acl(
        ResourceType(kind), PatternType(pattern), name, principal, host, Operation(operation), Permission(permission)
    )
