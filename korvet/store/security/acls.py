"""A namespace's access rules in Redis, as texts. `korvet.security.authorizer` knows what they mean."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from korvet.redis.client import Purpose, Store
from korvet.store.keys import Namespace

MOST_RULES: Final = 10_000
"""The rules of a namespace, and those that one call adds or removes."""
MOST_CALL_BYTES: Final = 4 << 20
"""The bytes of such a call."""


class StoredAcls:
    """The calls on the rules of a namespace.

    :raises StoreUnavailable, StoreFull, StoreError: every method.
    """

    def __init__(self, namespace: Namespace, store: Store) -> None:
        self.keys = namespace.security
        self._keys = [self.keys.acls]
        self._store = store

    async def add(self, rules: Sequence[str]) -> int:
        """Add at most `MOST_RULES` rules, all or none; Kafka's code: 0, INVALID_REQUEST or POLICY_VIOLATION."""
        code, _ = await self._store.call_function(Purpose.COORDINATE, "korvet_acls_add", self._keys, rules=rules)
        return int(code)

    async def remove(self, rules: Sequence[str]) -> Sequence[bool]:
        """Remove at most `MOST_RULES` rules as one; for each whether it was there."""
        _, present = await self._store.call_function(Purpose.COORDINATE, "korvet_acls_remove", self._keys, rules=rules)
        return [bool(one) for one in present]
