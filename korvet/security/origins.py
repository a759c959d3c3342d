"""The form of clients' addresses for bounds per address."""

from __future__ import annotations

from ipaddress import IPv6Address, ip_address
from typing import Final

_NETWORK_BITS: Final = 64


def origin_of(address: str) -> str:
    """The IPv4 address, or the IPv6 network, because one host may have all of it; empty for anything else."""
    try:
        parsed = ip_address(address)
    except ValueError:
        return ""
    if isinstance(parsed, IPv6Address):
        if parsed.ipv4_mapped is not None:
            return str(parsed.ipv4_mapped)
        return str(IPv6Address(int(parsed) >> _NETWORK_BITS << _NETWORK_BITS))
    return str(parsed)
