"""Users, access rules and quotas straight in Redis. Front-ends learn of each change at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from korvet.cli.ground.output import say_note
from korvet.cli.kafka.user_facts import User
from korvet.cli.redis.connections import call_function
from korvet.errors import KorvetError
from korvet.quotas import entity as entities
from korvet.quotas.quotas import parse_settings
from korvet.security.acl import Acl, AclFilter
from korvet.security.scram import make_credential
from korvet.security.stored_rules import MOST_RULES, decoded, encoded
from korvet.store.keys import Namespace
from korvet.store.security.users import CredentialKey, field_of, text_of

if TYPE_CHECKING:
    from korvet.cli.redis.connections import Node

_TOO_MUCH: Final = f"no rule was added: one is longer than 2048 bytes, or there would be more than {MOST_RULES}"
_ALL: Final = -1
"""No known version: everything is wanted."""


class RedisUsers:
    """The users of a namespace.

    :raises KorvetError: every method, if Redis refuses.
    """

    def __init__(self, nodes: Sequence[Node], namespace: Namespace) -> None:
        self._nodes = nodes
        self._key = namespace.security.users

    def add(self, key: CredentialKey, password: str, iterations: int) -> None:
        """Give a user a password."""
        text = text_of(make_credential(key.mechanism, password, iterations))
        code, _ = call_function(self._nodes, "korvet_users_alter", self._key, changes=[field_of(key), text])
        if code:
            raise KorvetError(f"user {key.user!r} was not added: the name is too long, or there are 10000 credentials")

    def find(self) -> list[User]:
        """All users, one for each mechanism, in order."""
        _, _, flat = call_function(self._nodes, "korvet_users_read", self._key, known_version=_ALL)
        found = []
        for field, text in zip(flat[::2], flat[1::2], strict=True):
            mechanism, _, user = field.decode().partition(":")
            found.append(User(user, mechanism, int(text.split()[0])))
        return sorted(found)

    def remove(self, user: str, mechanisms: Sequence[str]) -> bool:
        """Remove a user's passwords for these mechanisms; False if the user has none."""
        changes = [text for one in mechanisms for text in (field_of(CredentialKey(one, user)), "")]
        code, codes = call_function(self._nodes, "korvet_users_alter", self._key, changes=changes)
        return not code and not all(codes)


class RedisRules:
    """The access rules of a namespace.

    :raises KorvetError: every method, if Redis refuses.
    """

    def __init__(self, nodes: Sequence[Node], namespace: Namespace) -> None:
        self._nodes = nodes
        self._key = namespace.security.acls

    def add(self, rules: Sequence[Acl]) -> None:
        """Add rules, all or none; existing ones stay."""
        if len(rules) > MOST_RULES:
            raise KorvetError(_TOO_MUCH)
        code, _ = call_function(self._nodes, "korvet_acls_add", self._key, rules=list(map(encoded, rules)))
        if code:
            raise KorvetError(_TOO_MUCH)

    def find(self, filters: Sequence[AclFilter]) -> list[Acl]:
        """The rules that match a filter, in order. A line on stderr reports texts that are no rules."""
        _, _, texts = call_function(self._nodes, "korvet_acls_read", self._key, known_version=_ALL)
        found = [decoded(text.decode(errors="replace")) for text in texts]
        unknown = found.count(None)
        if unknown:
            say_note(
                f"korvet: {unknown} fields of {self._key} are no rules that this version knows, and may deny much; "
                "remove them with HDEL"
            )
        return sorted(rule for rule in found if rule is not None and any(one.matches(rule) for one in filters))

    def remove(self, filters: Sequence[AclFilter]) -> list[Acl]:
        """Remove the rules that match a filter, as one; returns them in order."""
        rules = self.find(filters)
        if rules:
            call_function(self._nodes, "korvet_acls_remove", self._key, rules=list(map(encoded, rules)))
        return rules


class RedisQuotas:
    """The quotas of a namespace.

    :raises KorvetError: every method, if Redis refuses.
    """

    def __init__(self, nodes: Sequence[Node], namespace: Namespace) -> None:
        self._nodes = nodes
        self._key = namespace.security.quotas

    def alter(self, entity: entities.Entity, quotas: Mapping[str, float | None]) -> None:
        """Set quotas of an entity; None removes one. All or none of them change."""
        changes = [
            text
            for name, number in quotas.items()
            for text in (entities.field_of(entity, name), "" if number is None else entities.number_text(number))
        ]
        (code,) = call_function(self._nodes, "korvet_quotas_alter", self._key, changes=changes)
        if code:
            raise KorvetError("no quota was changed: a name is too long, or there would be more than 10000 quotas")

    def find(self) -> dict[entities.Entity, dict[str, float]]:
        """All quotas by entity."""
        _, _, flat = call_function(self._nodes, "korvet_quotas_read", self._key, known_version=_ALL)
        return parse_settings(dict(zip(flat[::2], flat[1::2], strict=True)))
