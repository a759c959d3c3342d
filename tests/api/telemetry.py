"""Clients that push metrics (KIP-714), as raw requests."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from uuid import UUID, uuid4

from korvet.api.shared.telemetry import shown
from tests.api.raw import ask, unique
from tests.oracle.script import Connection, Step
from tests.support.broker import KorvetServer

WITHIN_S = 60.0


def configure(server: KorvetServer, name: str, operation: int, configs: Mapping[str, str]) -> None:
    changes = [
        {"name": key.replace("_", "."), "config_operation": operation, "value": value if operation == 0 else None}
        for key, value in configs.items()
    ]
    resource = {"resource_type": 16, "resource_name": name, "configs": changes}
    (answer,) = ask(server.port, "incremental_alter_configs", 1, resources=[resource])["responses"]
    assert answer["error_code"] == "NONE", answer


@contextmanager
def subscription(server: KorvetServer, **configs: str) -> Iterator[None]:
    """A subscription for the time of the block."""
    name = unique("subscription")
    configure(server, name, 0, configs)
    try:
        yield
    finally:
        configure(server, name, 1, configs)


class Client:
    """A client of one connection, which some worker got."""

    def __init__(self, server: KorvetServer, id: UUID | None = None) -> None:
        self._connection = Connection(server.bootstrap)
        self.id = id or uuid4()

    def close(self) -> None:
        self._connection.close()

    def ask(self, api: str, version: int = 0, **body: Any) -> Any:
        self._connection.send(Step(api), version, body)
        return self._connection.receive()[1]

    def subscribed(self, metrics: str) -> Any:
        """The client's subscription, once its worker knows it: a client is told of a change at once."""
        deadline = time.monotonic() + WITHIN_S
        while True:
            told = self.ask("get_telemetry_subscriptions", client_instance_id=self.id)
            if told["requested_metrics"] == [metrics]:
                return told
            assert time.monotonic() < deadline, told
            time.sleep(0.05)

    def push(self, told: Any, data: bytes, codec: int = 0, **more: Any) -> str:
        body = {"client_instance_id": self.id, "subscription_id": told["subscription_id"], "compression_type": codec,
                "metrics": data, "terminating": False, **more}  # fmt: skip
        return str(self.ask("push_telemetry", **body)["error_code"])

    def push_in_time(self, told: Any, data: bytes, codec: int) -> str:
        """Push as soon as the interval since the last push is over."""
        while (code := self.push(told, data, codec)) == "THROTTLING_QUOTA_EXCEEDED":
            time.sleep(0.02)
        return code


@contextmanager
def subscribed(server: KorvetServer, **configs: str) -> Iterator[tuple[Client, Any]]:
    """A client with a subscription of its own, and what it was told."""
    id = uuid4()
    with subscription(server, match=f"client_instance_id={shown(id)}", **configs):
        client = Client(server, id)
        try:
            yield client, client.subscribed(configs["metrics"])
        finally:
            client.close()
