"""The judge of requests: a namespace's access rules as this front-end last read them, super users, and a cache.

Each change of the rules is told by their key's channel, and every front-end reads them then. Before they were read
once, everything is refused but to super users. While Redis is away, the last known rules count.

Source: org.apache.kafka.metadata.authorizer.StandardAuthorizer
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from itertools import islice
from typing import Any, Final

import structlog

from korvet.errors import KorvetError, StoreError
from korvet.redis.client import Store
from korvet.redis.wakeup import Wakeups
from korvet.security.acl import (
    CLUSTER_NAME,
    OPERATIONS,
    Acl,
    Judgement,
    Operation,
    PatternType,
    Permission,
    ResourceType,
    Rules,
    canonical_host,
)
from korvet.security.audit import Audit
from korvet.security.principal import Principal
from korvet.store.every import every
from korvet.store.security.acls import MOST_AT_ONCE, StoredAcls

log = structlog.get_logger()

STANDARD: Final = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
"""The value of authorizer.class.name that turns authorization on."""
_REFRESH_S: Final = 30.0
_UNKNOWN_VERSION: Final = -1
_MOST_CACHED: Final = 10_000
_LONGEST_CACHED: Final = 256
_MOST_NAMES: Final = 10
_ADMINISTRATIVE: Final = {
    19: "topics", 20: "topics", 21: "topics", 27: "markers", 33: "resources", 37: "topics", 42: "groups_names",
    44: "resources", 47: "",
}  # fmt: skip
"""The APIs that change topics, groups and settings, each with the field of the things that it changes."""
_SUPER: Final = Judgement(True, None)
_UNREAD: Final = Judgement(False, None)


def encoded(acl: Acl) -> str:
    """A rule as it is stored; equal rules have equal texts."""
    return json.dumps(acl, ensure_ascii=False, separators=(",", ":"))


def decoded(text: str) -> Acl:
    """The rule of a stored text.

    :raises StoreError: if it is none.
    """
    try:
        kind, pattern, name, principal, host, operation, permission = json.loads(text)
        return Acl(
            ResourceType(kind),
            PatternType(pattern),
            name,
            principal,
            host,
            Operation(operation),
            Permission(permission),
        )
    except (ValueError, TypeError) as error:
        raise StoreError(f"an access rule cannot be read: {text[:200]!r}") from error


def parse_super_users(text: str) -> frozenset[str]:
    """The principals of super.users, which semicolons part.

    :raises ValueError: if one has no type or no name.
    """
    return frozenset(str(Principal.parse(part.strip())) for part in text.split(";") if part.strip())


def _named(thing: Any) -> str:
    """The name or id of a thing in a request."""
    fields = ("name", "resource_name", "topic_id", "producer_id", "group_id")
    return next((str(found) for field in fields if (found := getattr(thing, field, None)) is not None), "")


class Authorizer:
    """A namespace's rules, followed until cancelled by `follow`."""

    def __init__(
        self,
        stored: StoredAcls,
        store: Store,
        wakeups: Wakeups,
        audit: Audit,
        super_users: Collection[str],
        is_open: bool,
    ) -> None:
        self.audit = audit
        self.generation = 0
        """Counts the states that were read; a judgement is good while this is the same."""
        self._stored = stored
        self._has_told = store.has_told
        self._wakeups = wakeups
        self._super_users = frozenset(super_users)
        self._is_open = is_open
        self._version = _UNKNOWN_VERSION
        self._rules: Rules | None = None
        self._cache: dict[tuple[str, str, Operation, ResourceType, str], Judgement] = {}
        store.on_history_change(self._distrust)

    def configure(self, super_users: Collection[str], is_open: bool) -> None:
        """Have other super users and another allow.everyone.if.no.acl.found count."""
        self._super_users, self._is_open = frozenset(super_users), is_open
        self._forget()

    @property
    def acls(self) -> Collection[Acl]:
        """All rules as last read; no I/O."""
        return () if self._rules is None else self._rules.acls

    async def follow(self) -> None:
        """Keep the rules current until cancelled."""
        await every(
            0.0, self._follow, "access rules cannot be read; the last known ones count", has_told=self._has_told
        )

    async def _follow(self) -> None:
        with self._wakeups.listen([self._stored.channel]) as listening:
            await listening.ready()
            await self.refresh()
            await listening.wait(_REFRESH_S)

    async def refresh(self) -> None:
        """Read the rules if their version is not the known one.

        :raises StoreUnavailable, StoreError:
        """
        known = self._version
        version, texts = await self._stored.read(known)
        if texts is None:
            return
        self._rules = Rules(map(decoded, texts))
        # If history changed meanwhile, the answer may be of the former one: ask for everything again.
        self._version = version if self._version == known else _UNKNOWN_VERSION
        self._forget()

    def _distrust(self) -> None:
        self._version = _UNKNOWN_VERSION

    def _forget(self) -> None:
        self._cache.clear()
        self.generation += 1

    # ------------------------------------------------------------------ changes

    async def add(self, acls: Sequence[Acl]) -> int:
        """Add rules; Kafka's code: 0, INVALID_REQUEST or POLICY_VIOLATION. A thousand at a time are added as one.

        :raises StoreUnavailable, StoreFull, StoreError: as does `remove`; either may be repeated.
        """
        code = 0
        for at in range(0, len(acls), MOST_AT_ONCE):
            code = await self._stored.add(list(map(encoded, acls[at : at + MOST_AT_ONCE])))
            if code != 0:
                break
        await self._read_back()
        return code

    async def remove(self, acls: Sequence[Acl]) -> None:
        """Remove rules; those that are gone already are passed over."""
        for at in range(0, len(acls), MOST_AT_ONCE):
            await self._stored.remove(list(map(encoded, acls[at : at + MOST_AT_ONCE])))
        await self._read_back()

    async def _read_back(self) -> None:
        try:
            await self.refresh()
        except KorvetError as error:
            # The change stands, and `follow` makes up for the lost read.
            log.warning("access rules were changed, but could not be read again yet", reason=str(error))

    # ------------------------------------------------------------------ judgements

    def rights(self, principal: str, host: str, api: str) -> Rights:
        """What a principal at a host may do by an API."""
        return Rights(self, principal, host, api)

    def judge(
        self, principal: str, host: str, operation: Operation, resource_type: ResourceType, name: str
    ) -> Judgement:
        """Judge an action; no I/O. ``host`` is in `canonical_host`'s spelling."""
        if principal in self._super_users:
            return _SUPER
        if self._rules is None:
            return _UNREAD
        key = (principal, host, operation, resource_type, name)
        known = self._cache.get(key)
        if known is None:
            known = self._rules.judge(principal, host, operation, resource_type, name, is_open=self._is_open)
            # Clients choose names, so neither their number nor their length may grow this.
            if len(name) <= _LONGEST_CACHED:
                if len(self._cache) >= _MOST_CACHED:
                    self._cache.clear()
                self._cache[key] = known
        return known

    def judge_any(self, principal: str, host: str, operation: Operation, resource_type: ResourceType) -> bool:
        """Whether an operation is allowed on some resource of a type; no I/O."""
        if principal in self._super_users:
            return True
        if self._rules is None:
            return False
        # Kafka asks for a name that no rule is likely to have; so a resource without rules may be open.
        if self.judge(principal, host, operation, resource_type, "hardcode").is_allowed:
            return True
        return self._rules.judge_any(principal, host, operation, resource_type)

    def denies_some(self, principal: str, host: str, operation: Operation, resource_type: ResourceType) -> bool:
        """Whether a rule denies an operation on any resource of a type; no I/O."""
        if principal in self._super_users:
            return False
        return self._rules is None or self._rules.denies_some(principal, host, operation, resource_type)


class Rights:
    """What a connection's principal may do, as the rules are at the time of each question."""

    __slots__ = ("_api", "_authorizer", "_host", "_is_quiet", "_principal", "_shown_host", "quiet")

    def __init__(self, authorizer: Authorizer, principal: str, host: str, api: str, *, is_quiet: bool = False) -> None:
        self._authorizer = authorizer
        self._principal = principal
        self._host = canonical_host(host)
        self._shown_host = host
        self._api = api
        self._is_quiet = is_quiet
        self.quiet: Rights = self if is_quiet else Rights(authorizer, principal, host, api, is_quiet=True)
        """The same rights, whose refusals are not noted."""

    @property
    def authorizer(self) -> Authorizer:
        return self._authorizer

    def sees(self, operation: Operation, resource_type: ResourceType, name: str) -> bool:
        """Whether an operation is allowed; a refusal is not noted."""
        return self._authorizer.judge(self._principal, self._host, operation, resource_type, name).is_allowed

    def allows(self, operation: Operation, resource_type: ResourceType, name: str) -> bool:
        """Whether an operation is allowed; a refusal goes into the audit log."""
        judged = self._authorizer.judge(self._principal, self._host, operation, resource_type, name)
        if not judged.is_allowed and not self._is_quiet:
            self._note(operation, resource_type, name, judged.rule)
        return judged.is_allowed

    def allows_some(self, operation: Operation, resource_type: ResourceType) -> bool:
        """Whether an operation is allowed on some resource of a type."""
        return self._authorizer.judge_any(self._principal, self._host, operation, resource_type)

    def is_denied_some(self, operation: Operation, resource_type: ResourceType) -> bool:
        """Whether a rule denies an operation on any resource of a type."""
        return self._authorizer.denies_some(self._principal, self._host, operation, resource_type)

    def allows_on_cluster(self, *operations: Operation) -> bool:
        """Whether one of the operations is allowed on the cluster; a refusal names the last one."""
        return any(self.sees(one, ResourceType.CLUSTER, CLUSTER_NAME) for one in operations[:-1]) or self.allows(
            operations[-1], ResourceType.CLUSTER, CLUSTER_NAME
        )

    def operations(self, resource_type: ResourceType, name: str) -> int:
        """The allowed operations, bit n for the operation with number n."""
        return sum(1 << one for one in OPERATIONS[resource_type] if self.sees(one, resource_type, name))

    def note_administration(self, api_key: int, request: Any) -> None:
        """Note a request that may change topics, groups or settings, with the first names in it, before it is served.

        CreateAcls and DeleteAcls tell each rule themselves, by `note_change`.
        """
        field = _ADMINISTRATIVE.get(api_key)
        if field is None:
            return
        things = (
            (getattr(request, field, None) if field else None) or getattr(request, "topic_names", None) or (request,)
        )
        names = (thing if isinstance(thing, str) else _named(thing) for thing in islice(things, _MOST_NAMES))
        self.note_change(count=len(things), names=", ".join(names))

    def note_change(self, **values: str | int) -> None:
        """Note an administrative change by this principal."""
        self._authorizer.audit.changed(principal=self._principal, host=self._shown_host, request=self._api, **values)

    def _note(self, operation: Operation, resource_type: ResourceType, name: str, rule: Acl | None) -> None:
        self._authorizer.audit.refused(
            lambda: {
                "principal": self._principal,
                "operation": operation.name,
                "host": self._shown_host,
                "resource": f"{resource_type.name}:LITERAL:{name}",
                "request": self._api,
                "rule": "DefaultDeny" if rule is None else encoded(rule),
            }
        )
