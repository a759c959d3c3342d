"""Addresses of brokers."""

from __future__ import annotations

from typing import Final, NamedTuple

from korvet.errors import ConfigError

DEFAULT_BOOTSTRAP: Final = "127.0.0.1:9092"
DEFAULT_PORT: Final = 9092


class Address(NamedTuple):
    """A broker's address."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_addresses(text: str) -> list[Address]:
    """The addresses of ``host``, ``host:port`` or ``[ipv6]:port``, which commas part.

    :raises ConfigError: if one is none of them.
    """
    return [_parse(one.strip()) for one in text.split(",")]


def _parse(text: str) -> Address:
    host, _, port = text.rpartition(":") if not text.endswith("]") else (text, "", "")
    if not host:
        host, port = text, ""
    if port and not port.isdecimal():
        raise ConfigError(f"{text!r} is not HOST:PORT: give an address such as {DEFAULT_BOOTSTRAP}")
    return Address(host.strip("[]"), int(port or DEFAULT_PORT))
