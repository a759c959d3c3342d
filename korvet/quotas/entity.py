"""Entities of quotas, the quotas that each may have, and their texts in Redis. Without I/O.

An entity is a user, a client id, both, or an IP address; each may be the default one. Its name in Redis is its parts
with percent-encoded names, as in ``user=alice client-id=<default>``. A setting's field is this name, then the quota.

Source: ClientQuotaEntity, ClientQuotaControlManager, QuotaConfig; KIP-546, KIP-612.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from ipaddress import IPv6Address, ip_address
from typing import Final, NamedTuple
from urllib.parse import quote, unquote

USER: Final = "user"
CLIENT_ID: Final = "client-id"
IP: Final = "ip"
TYPES: Final = (USER, CLIENT_ID, IP)
DEFAULT: Final = ""
"""The name of a default entity; no other has it, for Kafka refuses empty names."""

PRODUCE: Final = "producer_byte_rate"
FETCH: Final = "consumer_byte_rate"
REQUEST: Final = "request_percentage"
MUTATION: Final = "controller_mutation_rate"
CONNECTION: Final = "connection_creation_rate"
_LONG_MAX: Final = float(2**63 - 1)
_INT_MAX: Final = float(2**31 - 1)
_OF_CLIENTS: Final[Mapping[str, tuple[str, float] | None]] = {
    PRODUCE: ("LONG", _LONG_MAX), FETCH: ("LONG", _LONG_MAX), REQUEST: None, MUTATION: None
}  # fmt: skip
"""The quotas of users and client ids: an integer's type and its highest number, None for a fraction."""
_OF_ADDRESSES: Final[Mapping[str, tuple[str, float] | None]] = {CONNECTION: ("INT", _INT_MAX)}
_EPSILON: Final = 1e-6
_DEFAULT_TEXT: Final = "<default>"


class Entity(NamedTuple):
    """An entity; absent parts are None."""

    user: str | None = None
    client_id: str | None = None
    ip: str | None = None

    @property
    def parts(self) -> list[tuple[str, str]]:
        """The entity's parts as (type, name) pairs."""
        return [(kind, name) for kind, name in zip(TYPES, self, strict=True) if name is not None]


def entity_of(parts: Mapping[str, str | None]) -> Entity | str:
    """The entity of (type, name) pairs, where a name of None means the default; else the problem, in Kafka's words."""
    if not parts:
        return "Invalid empty client quota entity"
    for kind, name in parts.items():
        if kind not in TYPES:
            return f"Unhandled client quota entity type: {kind}"
        if name == "":
            return f"Empty {kind} not supported"
    user, client_id, ip = (parts.get(kind) or DEFAULT if kind in parts else None for kind in TYPES)
    if ip is not None and len(parts) > 1:
        return "Invalid quota entity combination, IP entity shouldnot be combined with User or ClientId"
    if ip and normal_address(ip) is None:
        return f"{ip} is not a valid IP or resolvable host."
    return Entity(user, client_id, ip)


def value_problem(entity: Entity, key: str, value: float) -> str | None:
    """The problem with a quota's value, in Kafka's words; None if it is valid."""
    kinds = _OF_CLIENTS if entity.ip is None else _OF_ADDRESSES
    if key not in kinds:
        return f"Invalid configuration key {key}"
    if not value > 0:
        return f"Quota {key} must be greater than 0"
    integer = kinds[key]
    if integer is None:
        # An infinite quota limits nothing; Kafka takes it, but it cannot be counted.
        return None if value != float("inf") else f"Proposed value for {key} is too large for a DOUBLE."
    kind, highest = integer
    if value > highest:
        return f"Proposed value for {key} is too large for {'an' if kind == 'INT' else 'a'} {kind}."
    return None if abs(int(value) - value) <= _EPSILON else f"{key} cannot be a fractional value."


def normal_address(text: str) -> str | None:
    """The normal spelling of an IP address, IPv4 if mapped; None if the text is no address."""
    try:
        address = ip_address(text)
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return str(mapped or address)


# ---------------------------------------------------------------------- texts in Redis


def text_of(parts: Iterable[tuple[str, str]]) -> str:
    """The name of an entity, or of a bucket, in Redis."""
    return " ".join(f"{kind}={quote(name, safe='') or _DEFAULT_TEXT}" for kind, name in parts)


def field_of(entity: Entity, key: str) -> str:
    """The field of a setting in Redis."""
    return f"{text_of(entity.parts)} {key}"


def number_text(value: float) -> str:
    """The text of a quota in Redis."""
    return str(int(value)) if value == int(value) else repr(value)


def parsed_field(field: str) -> tuple[Entity, str] | None:
    """The entity and the quota of a field; None if korvet did not write it."""
    *words, key = field.split(" ")
    pairs = [word.partition("=") for word in words]
    parts = {kind: None if name == _DEFAULT_TEXT else unquote(name) for kind, _, name in pairs}
    entity = entity_of(parts)
    return (entity, key) if isinstance(entity, Entity) and field_of(entity, key) == field else None
