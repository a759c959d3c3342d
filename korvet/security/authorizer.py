"""The authorizer: a namespace's access rules as this front-end last read them, super users, and a cache.

Redis publishes each change of the rules on their key's channel, and every front-end then reads them. Before the first
read, only super users are allowed anything. While Redis is away, the last known rules apply.

Source: org.apache.kafka.metadata.authorizer.StandardAuthorizer
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

import anyio
import anyio.lowlevel
import structlog

from korvet.codes import POLICY_VIOLATION
from korvet.redis.client import Store
from korvet.redis.reply import in_task
from korvet.redis.wakeup import Wakeups
from korvet.security.acl import Acl, Operation, ResourceType
from korvet.security.audit import Audit
from korvet.security.principal import Principal
from korvet.security.rules import EVERYTHING, Client, Operations, Rules
from korvet.security.stored_rules import MOST_CALL_BYTES, MOST_RULES, SLICE, encoded, rules_in_steps
from korvet.store.followed import Followed
from korvet.store.keys import Namespace

log = structlog.get_logger()

STANDARD: Final = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
"""The value of authorizer.class.name that turns authorization on."""
_MOST_CACHED: Final = 10_000
_LONGEST_CACHED: Final = 256


def parse_super_users(text: str) -> frozenset[str]:
    """The principals of super.users, separated by semicolons.

    :raises ValueError: one lacks a type or a name.
    """
    return frozenset(str(Principal.parse(part.strip())) for part in text.split(";") if part.strip())


async def _texts(acls: Sequence[Acl]) -> Sequence[str] | None:
    """The rules as stored texts; None if too many for a call. Yields to other tasks meanwhile."""
    texts: list[str] = []
    left_bytes = MOST_CALL_BYTES
    for at in range(0, len(acls) if len(acls) <= MOST_RULES else 0, SLICE):
        some = list(map(encoded, acls[at : at + SLICE]))
        left_bytes -= sum(len(text.encode()) for text in some)
        texts += some
        await anyio.lowlevel.checkpoint()
    return texts if left_bytes >= 0 and len(texts) == len(acls) else None


class Authorizer(Followed):
    """A namespace's rules; `follow` keeps them current until cancelled."""

    def __init__(
        self,
        namespace: Namespace,
        store: Store,
        wakeups: Wakeups,
        audit: Audit,
        super_users: Collection[str],
        is_open: bool,
    ) -> None:
        complaint = "access rules cannot be read; the last known ones count"
        super().__init__(store, wakeups, namespace.security, "acls", complaint)
        self.audit = audit
        self.generation = 0
        """The number of states read; a cached decision is valid while this is the same."""
        self._super_users = frozenset(super_users)
        self._is_open = is_open
        self._reading = anyio.Lock()
        self._rules: Rules | None = None
        self._cache: dict[tuple[str, str, ResourceType, str], Operations] = {}
        self._some: dict[tuple[str, str, ResourceType, Operation, bool], bool] = {}

    def configure(self, super_users: Collection[str], is_open: bool) -> None:
        """Replace super.users and allow.everyone.if.no.acl.found."""
        self._super_users, self._is_open = frozenset(super_users), is_open
        self._forget()

    @property
    def acls(self) -> Sequence[Acl]:
        """All rules as last read, grouped by resource; no I/O."""
        return () if self._rules is None else self._rules.acls

    @property
    def nesting(self) -> int:
        """The most rule prefixes that one name may begin with: each adds to the cost of a decision."""
        return 0 if self._rules is None else self._rules.nesting

    async def refresh(self) -> None:
        """Read the rules if their version changed; reads run one at a time.

        :raises StoreUnavailable, StoreError:
        """
        await in_task()
        async with self._reading:
            await super().refresh()

    async def _take(self, fields: Sequence[bytes]) -> None:
        """Take rules over, yielding to other tasks. The reply names the rules alone."""
        steps = rules_in_steps([rule.decode(errors="replace") for rule in fields])
        while True:
            try:
                next(steps)
            except StopIteration as stop:
                self._rules = stop.value
                break
            await anyio.lowlevel.checkpoint()
        self._forget()

    def _pairs(self) -> Sequence[bytes]:
        return [part for rule in self._fields for part in (rule, b"1")]

    def _forget(self) -> None:
        self._cache.clear()
        self._some.clear()
        self.generation += 1

    # ------------------------------------------------------------------ changes

    async def add(self, acls: Sequence[Acl]) -> int:
        """Add rules, all or none; returns Kafka's code: 0, INVALID_REQUEST or POLICY_VIOLATION.

        POLICY_VIOLATION also if there are more than `MOST_RULES`, or `MOST_CALL_BYTES` of them.

        :raises StoreUnavailable, StoreFull, StoreError: as does `remove`; either may be repeated.
        """
        texts = await _texts(acls)
        if texts is None:
            return POLICY_VIOLATION
        code, _ = await self._change("korvet_acls_add", rules=texts)
        return int(code)

    async def remove(self, acls: Sequence[Acl]) -> int:
        """Remove rules atomically, ignoring absent ones; returns 0, or POLICY_VIOLATION as for `add`."""
        texts = await _texts(acls)
        if texts is None:
            return POLICY_VIOLATION
        await self._change("korvet_acls_remove", rules=texts)
        return 0

    # ------------------------------------------------------------------ decisions

    def allowed(self, client: Client, kind: ResourceType, name: str) -> Operations:
        """The operations that a client may do on a resource; no I/O."""
        if client.principal in self._super_users:
            return EVERYTHING
        if self._rules is None:
            return 0
        if len(name) > _LONGEST_CACHED:
            return self._rules.allowed(client, kind, name, is_open=self._is_open)
        key = (client.principal, client.host, kind, name)
        known = self._cache.get(key)
        if known is None:
            known = self._rules.allowed(client, kind, name, is_open=self._is_open)
            # Clients choose names, so neither their number nor their length may grow this.
            if len(self._cache) >= _MOST_CACHED:
                self._cache.clear()
            self._cache[key] = known
        return known

    def denying(self, client: Client, operation: Operation, kind: ResourceType, name: str) -> Acl | None:
        """A rule that denies an operation on a resource to a client; no I/O."""
        return None if self._rules is None else self._rules.denying(client, operation, kind, name)

    def allows_some(self, client: Client, operation: Operation, kind: ResourceType) -> bool:
        """True if an operation is allowed on some resource of a type; no I/O."""
        # Kafka checks a name that no rule is likely to have, so a resource without rules may be open.
        if self.allowed(client, kind, "hardcode") & 1 << operation:
            return True
        return self._rules is not None and self._of_some(client, operation, kind, is_denied=False)

    def denies_some(self, client: Client, operation: Operation, kind: ResourceType) -> bool:
        """True if a rule denies an operation on any resource of a type; no I/O."""
        if client.principal in self._super_users:
            return False
        return self._rules is None or self._of_some(client, operation, kind, is_denied=True)

    def _of_some(self, client: Client, operation: Operation, kind: ResourceType, *, is_denied: bool) -> bool:
        """Evaluate all rules that concern a client: some milliseconds for thousands of them."""
        assert self._rules is not None
        key = (client.principal, client.host, kind, operation, is_denied)
        known = self._some.get(key)
        if known is None:
            ask = self._rules.denies_some if is_denied else self._rules.allows_some
            if len(self._some) >= _MOST_CACHED:
                self._some.clear()
            known = self._some[key] = ask(client, operation, kind)
        return known
