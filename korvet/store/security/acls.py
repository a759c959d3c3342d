"""A namespace's access rules in Redis, as texts. `korvet.security.authorizer` knows what they mean."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from korvet.redis.client import Purpose, Store
from korvet.store.keys import Namespace

MOST_RULES: Final = 10_000
"""The rules of a namespace, and those that one call adds or removes."""
MOST_CALL_BYTES: Final = 4 << 20
"""The bytes of such a call."""


class StoredRules(NamedTuple):
    """The rules of a version; ``rules`` is None if the version is the one that the caller knows."""

    version: int
    rules: Sequence[str] | None


class StoredAcls:
    """The calls on the rules of a namespace.

    :raises StoreUnavailable, StoreFull, StoreError: every method.
    """

    def __init__(self, namespace: Namespace, store: Store) -> None:
        self.channel = namespace.security.acls
        self._keys = [namespace.security.acls]
        self._store = store

    async def read(self, known_version: int) -> StoredRules:
        """All rules, unless their version is known."""
        _, version, rules = await self._store.call_function(
            Purpose.COORDINATE, "korvet_acls_read", self._keys, known_version=known_version
        )
        return StoredRules(
            version, None if version == known_version else [rule.decode(errors="replace") for rule in rules]
        )

    async def add(self, rules: Sequence[str]) -> int:
        """Add at most `MOST_RULES` rules, all or none; Kafka's code: 0, INVALID_REQUEST or POLICY_VIOLATION."""
        code, _ = await self._store.call_function(Purpose.COORDINATE, "korvet_acls_add", self._keys, rules=rules)
        return int(code)

    async def remove(self, rules: Sequence[str]) -> Sequence[bool]:
        """Remove at most `MOST_RULES` rules as one; for each whether it was there."""
        _, present = await self._store.call_function(Purpose.COORDINATE, "korvet_acls_remove", self._keys, rules=rules)
        return [bool(one) for one in present]
