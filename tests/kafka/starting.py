"""Clients by name."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tests.kafka.builds import driver_command
from tests.kafka.client import Client
from tests.kafka.kcat import Kcat
from tests.kafka.process import ProcessClient
from tests.support.tools import find_tool


class Clients:
    """The clients of one broker; a driver starts when a test first asks for it. `running_clients` makes one."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._running: dict[str, Client] = {}

    def named(self, name: str) -> Client:
        """The client of a name in `traits.MEMBERS`; clients that differ only in the protocol share a driver."""
        plain = name.removesuffix("-consumer")
        if plain not in self._running:
            self._running[plain] = self._start(plain)
        found = self._running[plain]
        return found.speaking("consumer") if name != plain and isinstance(found, ProcessClient) else found

    def _start(self, name: str) -> Client:
        if name == "kcat":
            return Kcat(find_tool("kcat"), self._bootstrap)
        return ProcessClient(name, driver_command(name, self._bootstrap))

    def stop(self) -> None:
        for client in self._running.values():
            client.stop()


@contextmanager
def running_clients(bootstrap: str) -> Iterator[Clients]:
    """The clients of a broker; their drivers end with the block."""
    clients = Clients(bootstrap)
    try:
        yield clients
    finally:
        clients.stop()
