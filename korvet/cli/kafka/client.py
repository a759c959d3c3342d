"""A small blocking Kafka client for the command line: one request at a time, each at one fixed version.

Librdkafka would say less to users. It drops a broker's reason for a refused record, does not split a batch that is
too large, and ends at records that it cannot decode, some of them without any error. Its errors do not say whether a
listener wants TLS or a login. Its AdminClient lacks quotas, sizes, transactions and the removal of members.

The client uses versions of Apache Kafka 3.1, so the commands work on korvet and on any Kafka since then. It uses later
ones if the brokers serve them. It sends requests as Kafka wants: to the controller, to a partition's leader, or to a
group's coordinator.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from contextvars import ContextVar
from functools import wraps
from types import TracebackType
from typing import Any, Final, ParamSpec, Self, TypeVar

from kio.schema.errors import ErrorCode

from korvet import __version__
from korvet.cli.kafka.address import DEFAULT_BOOTSTRAP, Address, parse_addresses
from korvet.cli.kafka.connection import Connection
from korvet.cli.kafka.errors import BrokerError, UnfitSettings, check
from korvet.cli.kafka.framing import Request, request, schema
from korvet.cli.kafka.security import ClientSecurity

RETRY_WITHIN_S: Final = 15.0
PATIENCE_S: Final = ContextVar("patience_s", default=RETRY_WITHIN_S)
"""How long `retried` repeats an attempt."""
RETRY_PAUSE_S: Final = 0.2

_PASSING: Final = {
    ErrorCode.coordinator_load_in_progress,
    ErrorCode.coordinator_not_available,
    ErrorCode.not_coordinator,
    ErrorCode.not_controller,
    ErrorCode.leader_not_available,
    ErrorCode.not_leader_or_follower,
    ErrorCode.request_timed_out,
}
_PLAIN: Final = ClientSecurity()
GROUP, TRANSACTION = 0, 1
"""Kinds of coordinators, by FindCoordinator's numbers."""

P = ParamSpec("P")
T = TypeVar("T")


class Client:
    """A cluster as an admin client sees it, for one thread."""

    def __init__(self, bootstrap: str = DEFAULT_BOOTSTRAP, security: ClientSecurity = _PLAIN) -> None:
        self._bootstrap = parse_addresses(bootstrap)
        self._security = security
        self._connections: dict[Address, Connection] = {}
        self._brokers: dict[int, Address] = {}
        self._controller = -1
        self._served: dict[int, range] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for connection in self._connections.values():
            connection.close()

    def ask(self, request: Request, at: int | Address | None = None, answer: Any = None) -> Any:
        """The answer of a node by its id, of a broker at an address, or of the first broker that answers.

        :param answer: the class of the answer, if it is another one than kio's.
        """
        if at is None:
            return self._any().ask(request, answer)
        return self._at(at).ask(request, answer)

    def ask_all(self, requests: Sequence[Request], at: int | Address) -> list[Any]:
        """The answers of a node to requests of one API that do not wait for each other's answers."""
        return self._at(at).ask_all(requests)

    def introduce(self, at: int) -> None:
        """Name this software to a node, once on each connection: a korvet believes the times of its batches then."""
        connection = self._at(at)
        if not connection.is_introduced:
            software = {"client_software_name": "korvet", "client_software_version": __version__}
            check(connection.ask(request("api_versions", 3, **software)).error_code, "versions of the broker's APIs")
            connection.is_introduced = True

    def _at(self, at: int | Address) -> Connection:
        return self._connection(self._brokers[at] if isinstance(at, int) else at)

    def ask_controller(self, request: Request) -> Any:
        """The answer of the controller, which creates, changes and deletes topics."""
        if self._controller not in self._brokers:
            self.topics([])
        return self.ask(request, self._controller if self._controller in self._brokers else None)

    def ask_coordinator(self, group: str, request: Request) -> Any:
        """Look up the coordinator of a group, and return its answer."""
        return self.ask(request, self.coordinator(group))

    def coordinator(self, key: str, kind: int = GROUP) -> Address:
        """The coordinator of a group or of a transactional id.

        :raises BrokerError: with TRANSACTIONAL_ID_AUTHORIZATION_FAILED, …
        """
        for found in self._coordinators((key,), kind):
            what = "group" if kind == GROUP else "transactional id"
            check(found.error_code, f"coordinator of {what} {key!r}", found.error_message)
            return Address(found.host, found.port)
        raise BrokerError(f"the broker names no coordinator for {key!r}")

    def coordinators(self, groups: Sequence[str]) -> dict[Address, list[str]]:
        """The coordinators of these groups, and the groups of each; one that has none now is left out."""
        found: dict[Address, list[str]] = {}
        for one in self._coordinators(groups, GROUP):
            if one.error_code is ErrorCode.none:
                found.setdefault(Address(one.host, one.port), []).append(one.key)
        return found

    def _coordinators(self, keys: Sequence[str], kind: int) -> Any:
        return self.ask(request("find_coordinator", 4, key_type=kind, coordinator_keys=keys)).coordinators

    def serves(self, api: str, version: int) -> bool:
        """True if the brokers serve a version of an API."""
        if not self._served:
            answer = self.ask(request("api_versions", 0))
            check(answer.error_code, "versions of the broker's APIs")
            self._served = {int(one.api_key): range(one.min_version, one.max_version + 1) for one in answer.api_keys}
        return version in self._served.get(schema(api, version, "Request").__api_key__, ())

    def brokers(self) -> Iterable[int]:
        """Node ids of the brokers."""
        self.topics([])
        return tuple(self._brokers)

    def topics(self, names: Iterable[str] | None = None) -> dict[str, Any]:
        """Metadata of the named topics, or of all; a topic that does not exist has an error code."""
        topics = None if names is None else [{"name": name, "topic_id": None} for name in names]
        answer = self.ask(request("metadata", 12, topics=topics, allow_auto_topic_creation=False))
        self._brokers = {broker.node_id: Address(broker.host, broker.port) for broker in answer.brokers}
        self._controller = answer.controller_id
        return {str(topic.name): topic for topic in answer.topics if topic.name is not None}

    def _any(self) -> Connection:
        for connection in self._connections.values():
            if connection.is_open:
                return connection
        failures = []
        for address in dict.fromkeys((*self._bootstrap, *self._brokers.values())):
            try:
                return self._connection(address)
            except UnfitSettings:
                raise
            except BrokerError as error:
                failures.append(error)
        raise failures[0]

    def _connection(self, address: Address) -> Connection:
        if address not in self._connections or not self._connections[address].is_open:
            self._connections[address] = Connection(address, self._security)
        return self._connections[address]


def may_pass(error: BrokerError) -> bool:
    """True if a retry may succeed: the broker is unavailable, leader or coordinator changed, or none is ready."""
    return not isinstance(error, UnfitSettings) and (error.code is None or error.code in _PASSING)


def retried(attempt: Callable[P, T]) -> Callable[P, T]:
    """A function that repeats an attempt for a while, as long as its error may pass; then it raises the last one."""

    @wraps(attempt)
    def repeat(*arguments: P.args, **named: P.kwargs) -> T:
        deadline = time.monotonic() + PATIENCE_S.get()
        while True:
            try:
                return attempt(*arguments, **named)
            except BrokerError as error:
                if error.code not in _PASSING or time.monotonic() > deadline:
                    raise
            time.sleep(RETRY_PAUSE_S)

    return repeat
