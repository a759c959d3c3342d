"""The quotas of a namespace, and the choice of a client's. Without I/O.

For each kind of quota, the first of these entities that has one decides:

1. the user with the client id, 2. the user with any client id, 3. the user,
4. any user with the client id, 5. any user with any client id, 6. any user, 7. the client id, 8. any client id.

The level decides which clients share a bucket. At 1, 2, 4 and 5 each pair of a user and a client id has one. At 3 and 6
each user has one, and at 7 and 8 each client id.

An operator may also set ceilings for a tenant: all of its clients share one bucket for each.

Source: ClientQuotaManager.DefaultQuotaCallback, ConnectionQuotas
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from korvet.configs.values import BrokerValues
from korvet.quotas.bucket import RateLimit
from korvet.quotas.entity import (
    CLIENT_ID,
    CONNECTION,
    DEFAULT,
    FETCH,
    IP,
    MUTATION,
    PRODUCE,
    REQUEST,
    USER,
    Entity,
    normal_address,
    text_of,
)

Settings = Mapping[Entity, Mapping[str, float]]
NO_CEILINGS: Final[Mapping[str, float]] = MappingProxyType({})
_PERCENT = 100.0
_ALL: Final = "tenant"
"""The second word of the name of a bucket that all clients share."""


class Windows(NamedTuple):
    """The settings that bound bursts: ``quota.window.*`` and ``controller.quota.window.*``."""

    num: int
    size_s: int
    controller_num: int
    controller_size_s: int

    @classmethod
    def of(cls, broker: BrokerValues) -> Windows:
        """The windows of a broker's settings.

        :raises ConfigError: a setting is out of range.
        """
        of_mutations = "controller.quota.window"
        names = (f"{prefix}.{name}" for prefix in ("quota.window", of_mutations) for name in ("num", "size.seconds"))
        return cls(*map(broker.integer, names))

    @property
    def past_s(self) -> int:
        """The seconds of whole windows: Kafka's rate counts these, for the current one has just begun."""
        return max(1, self.num - 1) * self.size_s

    @property
    def controller_s(self) -> int:
        """The seconds of all windows of controller mutations."""
        return self.controller_num * self.controller_size_s


RateLimits = tuple[RateLimit, ...]
"""Limits that count together: the client's own, if it has one, and the tenant's ceiling, if there is one."""


class Meter(NamedTuple):
    """The limits of a client. The unit of ``request`` is seconds of a thread."""

    produce: RateLimits
    fetch: RateLimits
    request: RateLimits
    mutation: RateLimits


class Rules:
    """The quotas of a namespace, immutable.

    :param ceilings: of the whole namespace, by quota.
    """

    def __init__(self, settings: Settings, windows: Windows, ceilings: Mapping[str, float] = NO_CEILINGS) -> None:
        self.settings = settings
        self.windows = windows
        self._ceilings = ceilings
        self._of_addresses = {
            (normal_address(entity.ip) or DEFAULT): quotas[CONNECTION]
            for entity, quotas in settings.items()
            if entity.ip is not None and CONNECTION in quotas
        }

    def meter(self, user: str, client_id: str) -> Meter:
        """The limits of a client."""
        past_s = self.windows.past_s
        return Meter(
            self._limits(PRODUCE, user, client_id, past_s),
            self._limits(FETCH, user, client_id, past_s),
            self._limits(REQUEST, user, client_id, past_s, unit=1 / _PERCENT),
            self._limits(MUTATION, user, client_id, self.windows.controller_s),
        )

    def connections(self, address: str) -> RateLimits:
        """The limits of new connections from an address."""
        address = normal_address(address) or address
        past_s = self.windows.past_s
        rate = self._of_addresses.get(address, self._of_addresses.get(DEFAULT))
        own = () if rate is None else (RateLimit(f"{CONNECTION} {text_of([(IP, address)])}", rate, rate * past_s),)
        return own + self._ceiling(CONNECTION, past_s)

    def _limits(self, key: str, user: str, client_id: str, past_s: float, unit: float = 1.0) -> RateLimits:
        own = self._limit(key, user, client_id, past_s, unit)
        return (() if own is None else (own,)) + self._ceiling(key, past_s, unit)

    def _ceiling(self, key: str, past_s: float, unit: float = 1.0) -> RateLimits:
        if key not in self._ceilings:
            return ()
        rate = self._ceilings[key] * unit
        return (RateLimit(f"{key} {_ALL}", rate, rate * past_s),)

    def _limit(self, key: str, user: str, client_id: str, past_s: float, unit: float) -> RateLimit | None:
        of_user, of_client = (USER, user), (CLIENT_ID, client_id)
        for entity, sharers in (
            (Entity(user, client_id), (of_user, of_client)),
            (Entity(user, DEFAULT), (of_user, of_client)),
            (Entity(user), (of_user,)),
            (Entity(DEFAULT, client_id), (of_user, of_client)),
            (Entity(DEFAULT, DEFAULT), (of_user, of_client)),
            (Entity(DEFAULT), (of_user,)),
            (Entity(None, client_id), (of_client,)),
            (Entity(None, DEFAULT), (of_client,)),
        ):
            value = self.settings.get(entity, {}).get(key)
            if value is not None:
                rate = value * unit
                return RateLimit(f"{key} {text_of(sharers)}", rate, rate * past_s)
        return None
