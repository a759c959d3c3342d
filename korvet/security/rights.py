"""The rights of a connection's client, by the access rules at the time of each check."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from korvet.security.acl import CLUSTER_NAME, OPERATIONS, Operation, ResourceType
from korvet.security.authorizer import Authorizer
from korvet.security.rules import Client
from korvet.security.stored_rules import encoded

_MOST_NAMES: Final = 10
_MOST_KEPT_NAMES: Final = 100
_CHEAP_NESTING: Final = 8


class Rights:
    """The rights of a client on a connection.

    :ivar weight: the factor by which nested rule prefixes may raise the cost of a check.
    """

    __slots__ = ("_api", "_authorizer", "_client", "_is_quiet", "_shown_host", "quiet")

    def __init__(self, authorizer: Authorizer, principal: str, host: str, api: str, *, is_quiet: bool = False) -> None:
        self._authorizer = authorizer
        self._client = Client.of(principal, host)
        self._shown_host = host
        self._api = api
        self._is_quiet = is_quiet
        self.quiet: Rights = self if is_quiet else Rights(authorizer, principal, host, api, is_quiet=True)
        """The same rights, without audit lines for refusals."""

    @property
    def generation(self) -> int:
        """The number of the rules' state; a cached answer is valid while this is the same."""
        return self._authorizer.generation

    @property
    def weight(self) -> int:
        return 1 + self._authorizer.nesting // _CHEAP_NESTING

    def sees(self, operation: Operation, kind: ResourceType, name: str) -> bool:
        """True if an operation is allowed; writes no audit line."""
        return bool(self._authorizer.allowed(self._client, kind, name) & 1 << operation)

    def allows(self, operation: Operation, kind: ResourceType, name: str) -> bool:
        """True if an operation is allowed; a refusal goes into the audit log."""
        if self._authorizer.allowed(self._client, kind, name) & 1 << operation:
            return True
        if not self._is_quiet:
            self._note(operation, kind, name)
        return False

    def allows_some(self, operation: Operation, kind: ResourceType) -> bool:
        """True if an operation is allowed on some resource of a type."""
        return self._authorizer.allows_some(self._client, operation, kind)

    def is_denied_some(self, operation: Operation, kind: ResourceType) -> bool:
        """True if a rule denies an operation on any resource of a type."""
        return self._authorizer.denies_some(self._client, operation, kind)

    def allows_on_cluster(self, *operations: Operation) -> bool:
        """True if one of the operations is allowed on the cluster; a refusal names the last one."""
        return any(self.sees(one, ResourceType.CLUSTER, CLUSTER_NAME) for one in operations[:-1]) or self.allows(
            operations[-1], ResourceType.CLUSTER, CLUSTER_NAME
        )

    def operations(self, kind: ResourceType, name: str) -> int:
        """The value of authorized_operations: bit n is set if operation n is allowed."""
        return self._authorizer.allowed(self._client, kind, name) & OPERATIONS[kind]

    def note_change(self, names: Sequence[str], outcome: str, *, is_kept: bool, **values: Any) -> None:
        """Log this client's administrative request with the names that it would change; see `Audit.changed`.

        One line holds some of the names; further lines hold the rest if all are kept.
        """
        most = _MOST_KEPT_NAMES if is_kept else _MOST_NAMES
        for at in range(0, max(1, len(names)) if is_kept else 1, most):
            self._authorizer.audit.changed(
                principal=self._client.principal, host=self._shown_host, request=self._api, count=len(names),
                names=list(names[at : at + most]), outcome=outcome, is_kept=is_kept, **values,
            )  # fmt: skip

    def _note(self, operation: Operation, kind: ResourceType, name: str) -> None:
        def values() -> dict[str, Any]:
            rule = self._authorizer.denying(self._client, operation, kind, name)
            return {
                "operation": operation.name,
                "resource": f"{kind.name}:LITERAL:{name}",
                "request": self._api,
                "rule": "DefaultDeny" if rule is None else encoded(rule),
            }

        self._authorizer.audit.refused(self._client.principal, self._shown_host, values)
