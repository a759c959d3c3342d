"""A small blocking Kafka client for the command line: one request at a time, each at one fixed version.

The client uses versions of Apache Kafka 3.1, so the commands work on korvet and on any Kafka since then. It uses later
ones if the brokers serve them. It sends requests as Kafka wants: to the controller, to a partition's leader, or to a
group's coordinator.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from contextvars import ContextVar
from types import TracebackType
from typing import Final, Self, TypeVar

from kio.schema.api_versions.v0 import ApiVersionsRequest, ApiVersionsResponse
from kio.schema.errors import ErrorCode
from kio.schema.find_coordinator.v4 import FindCoordinatorRequest, FindCoordinatorResponse
from kio.schema.metadata.v12 import MetadataRequest, MetadataResponse
from kio.schema.metadata.v12.request import MetadataRequestTopic
from kio.schema.metadata.v12.response import MetadataResponseTopic
from kio.schema.types import TopicName
from kio.static.primitive import i8
from kio.static.protocol import RequestPayload

from korvet.cli.kafka.address import DEFAULT_BOOTSTRAP, Address, parse_addresses
from korvet.cli.kafka.connection import Connection
from korvet.cli.kafka.errors import BrokerError, UnfitSettings, check
from korvet.cli.kafka.framing import R
from korvet.cli.kafka.security import ClientSecurity

RETRY_WITHIN_S: Final = 15.0
PATIENCE_S: Final = ContextVar("patience_s", default=RETRY_WITHIN_S)
"""The time for which `retried` repeats an attempt."""
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

    def ask(self, request: RequestPayload, answer: type[R], node: int | None = None) -> R:
        """Ask a node by its id, or the first broker that answers."""
        connection = self._any() if node is None else self._connection(self._brokers[node])
        return connection.ask(request, answer)

    def ask_controller(self, request: RequestPayload, answer: type[R]) -> R:
        """Ask the controller, which creates, changes and deletes topics."""
        if self._controller not in self._brokers:
            self.topics([])
        return self.ask(request, answer, self._controller if self._controller in self._brokers else None)

    def ask_coordinator(self, group: str, request: RequestPayload, answer: type[R]) -> R:
        """Look up the coordinator of a group, and ask it."""
        lookup = FindCoordinatorRequest(key_type=i8(0), coordinator_keys=(group,))
        found = self.ask(lookup, FindCoordinatorResponse).coordinators
        if not found:
            raise BrokerError(f"the broker names no coordinator for group {group!r}")
        check(found[0].error_code, f"coordinator of group {group!r}", found[0].error_message)
        return self.ask_at(Address(found[0].host, found[0].port), request, answer)

    def coordinators(self, groups: Sequence[str]) -> dict[Address, list[str]]:
        """The coordinators of these groups, and the groups of each; one that has none now is left out."""
        request = FindCoordinatorRequest(key_type=i8(0), coordinator_keys=tuple(groups))
        found: dict[Address, list[str]] = {}
        for one in self.ask(request, FindCoordinatorResponse).coordinators:
            if one.error_code is ErrorCode.none:
                found.setdefault(Address(one.host, one.port), []).append(one.key)
        return found

    def ask_at(self, address: Address, request: RequestPayload, answer: type[R]) -> R:
        """Ask the broker at an address that another broker told."""
        return self._connection(address).ask(request, answer)

    def serves(self, api_key: int, version: int) -> bool:
        """Whether the brokers serve a version of an API."""
        if not self._served:
            answer = self.ask(ApiVersionsRequest(), ApiVersionsResponse)
            check(answer.error_code, "versions of the broker's APIs")
            self._served = {int(api.api_key): range(api.min_version, api.max_version + 1) for api in answer.api_keys}
        return version in self._served.get(api_key, ())

    def brokers(self) -> Iterable[int]:
        """Node ids of the brokers."""
        self.topics([])
        return tuple(self._brokers)

    def topics(self, names: Iterable[str] | None = None) -> dict[str, MetadataResponseTopic]:
        """Metadata of the named topics, or of all; a topic that does not exist has an error code."""
        request = MetadataRequest(
            topics=None
            if names is None
            else tuple(MetadataRequestTopic(name=TopicName(name), topic_id=None) for name in names),
            allow_auto_topic_creation=False,
            include_topic_authorized_operations=False,
        )
        response = self.ask(request, MetadataResponse)
        self._brokers = {broker.node_id: Address(broker.host, broker.port) for broker in response.brokers}
        self._controller = response.controller_id
        return {topic.name: topic for topic in response.topics if topic.name is not None}

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
    """Whether the next attempt may succeed: the broker is away, another one leads or coordinates, or none is ready."""
    return not isinstance(error, UnfitSettings) and (error.code is None or error.code in _PASSING)


def retried(attempt: Callable[[], T]) -> T:
    """An attempt's result; the attempt is repeated for a while if `may_pass` says that it may succeed.

    :raises BrokerError: the last one.
    """
    deadline = time.monotonic() + PATIENCE_S.get()
    while True:
        try:
            return attempt()
        except BrokerError as error:
            if error.code not in _PASSING or time.monotonic() > deadline:
                raise
        time.sleep(RETRY_PAUSE_S)
