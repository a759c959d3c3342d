"""Quotas for tests, through AlterClientQuotas, and the moment from which a front-end holds them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from tests.api.data import Connection
from tests.api.raw import ask
from tests.oracle.messages import request_frame

Entity = Mapping[str, str | None]


def entry(entity: Entity, **quotas: float | None) -> dict[str, Any]:
    """An entry of AlterClientQuotas; None removes a quota."""
    return {
        "entity": [{"entity_type": kind.replace("_", "-"), "entity_name": name} for kind, name in entity.items()],
        "ops": [{"key": key, "value": value or 0.0, "remove": value is None} for key, value in quotas.items()],
    }


def altered(port: int, *entries: dict[str, Any], validate_only: bool = False) -> list[tuple[str, str | None]]:
    """Error and message of each entity."""
    answer = ask(port, "alter_client_quotas", 1, entries=list(entries), validate_only=validate_only)
    return [(one["error_code"], one["error_message"]) for one in answer["entries"]]


def limit(port: int, entity: Entity, **quotas: float | None) -> None:
    """Set quotas of an entity, or remove them. The front-end that answers holds them from now on."""
    assert altered(port, entry(entity, **quotas)) == [("NONE", None)]


def component(kind: str, name: str | None = None, how: int = 0) -> dict[str, Any]:
    """A part of a filter: a name exactly, with 1 the default entity, with 2 any of the type."""
    return {"entity_type": kind, "match_type": how, "match": name}


def described(port: int, *components: dict[str, Any], strict: bool = False) -> dict[tuple[Any, ...], dict[str, float]]:
    """The quotas by entities, an entity as pairs of type and name."""
    answer = ask(port, "describe_client_quotas", 1, components=list(components), strict=strict)
    assert answer["error_code"] == "NONE", answer
    return {
        tuple((part["entity_type"], part["entity_name"]) for part in one["entity"]): {
            value["key"]: value["value"] for value in one["values"]
        }
        for one in answer["entries"]
    }


class Client(Connection):
    """A connection whose requests have a client id."""

    def __init__(self, port: int, client_id: str) -> None:
        super().__init__(port)
        self._client_id = client_id.encode()

    def send(self, api: str, version: int, /, **values: Any) -> None:
        self._sent += 1
        self._asked[self._sent] = api, version
        self.socket.sendall(self.frame(api, version, **values))

    def frame(self, api: str, version: int, /, **values: Any) -> bytes:
        """A request with the number of the last one."""
        frame = request_frame(api, version, values, self._sent)
        at, size = 14, int.from_bytes(frame[12:14], "big")
        body = frame[4:12] + len(self._client_id).to_bytes(2, "big") + self._client_id + frame[at + size :]
        return len(body).to_bytes(4, "big") + body


@contextmanager
def client(port: int, client_id: str) -> Iterator[Client]:
    """A connection for the time of the block."""
    one = Client(port, client_id)
    try:
        yield one
    finally:
        one.socket.close()
