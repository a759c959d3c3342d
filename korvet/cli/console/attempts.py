"""A bound on the logins that an address may try: `MOST_AT_ONCE`, and another one each `EVERY_S`."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from ipaddress import IPv6Address, ip_address
from typing import Final

MOST_AT_ONCE: Final = 10
EVERY_S: Final = 6.0
MOST_ADDRESSES: Final = 10_000
_NETWORK_BITS: Final = 64


class Attempts:
    """Attempts that addresses have left. One that succeeded is given back."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._full_at: OrderedDict[str, float] = OrderedDict()
        """By address, the time at which it has all attempts again; full ones need not be here."""

    def take(self, address: str) -> bool:
        """Whether an address may try a login now."""
        origin, now = _origin(address), self._clock()
        full_at = max(self._full_at.get(origin, now), now) + EVERY_S
        if full_at - now > MOST_AT_ONCE * EVERY_S:
            return False
        self._full_at[origin] = full_at
        self._full_at.move_to_end(origin)
        if len(self._full_at) > MOST_ADDRESSES:
            self._full_at.popitem(last=False)
        return True

    def give_back(self, address: str) -> None:
        """Forget an attempt that succeeded."""
        origin = _origin(address)
        if origin in self._full_at:
            self._full_at[origin] -= EVERY_S


def _origin(address: str) -> str:
    """The address; of IPv6 its network, which one host may have as a whole."""
    try:
        parsed = ip_address(address)
    except ValueError:
        return ""
    if isinstance(parsed, IPv6Address):
        if parsed.ipv4_mapped is not None:
            return str(parsed.ipv4_mapped)
        return str(IPv6Address(int(parsed) >> _NETWORK_BITS << _NETWORK_BITS))
    return str(parsed)
