"""A small blocking Kafka client for the command line: one request at a time, each at one fixed version.

The client uses versions of Apache Kafka 3.1, so the commands work on korvet and on any Kafka since then. It uses later
ones if the brokers serve them. It sends requests as Kafka wants: to the controller, to a partition's leader, or to a
group's coordinator.
"""

from __future__ import annotations

import io
import socket
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from types import TracebackType
from typing import Any, Self, TypeVar

from kio.schema.api_versions.v0 import ApiVersionsRequest, ApiVersionsResponse
from kio.schema.errors import ErrorCode
from kio.schema.find_coordinator.v4 import FindCoordinatorRequest, FindCoordinatorResponse
from kio.schema.metadata.v12 import MetadataRequest, MetadataResponse
from kio.schema.metadata.v12.request import MetadataRequestTopic
from kio.schema.metadata.v12.response import MetadataResponseTopic
from kio.schema.types import TopicName
from kio.serial import entity_reader, entity_writer
from kio.serial.errors import DecodeError
from kio.static.primitive import i8
from kio.static.protocol import RequestPayload, ResponsePayload

from korvet.errors import ConfigError, KorvetError

DEFAULT_BOOTSTRAP = "127.0.0.1:9092"
DEFAULT_PORT = 9092
CLIENT_ID = "korvet-cli"
MAX_FRAME_BYTES = 100 * 1024 * 1024
RETRY_WITHIN_S = 15.0
RETRY_PAUSE_S = 0.2

_PASSING = {
    ErrorCode.coordinator_load_in_progress,
    ErrorCode.coordinator_not_available,
    ErrorCode.not_coordinator,
    ErrorCode.not_controller,
    ErrorCode.leader_not_available,
    ErrorCode.not_leader_or_follower,
    ErrorCode.request_timed_out,
}

_NOBODY = "no broker serves it for now: try again, and see the broker's log"
# The advice after an error's name.
_ADVICE = {
    ErrorCode.coordinator_not_available: _NOBODY,
    ErrorCode.leader_not_available: _NOBODY,
    ErrorCode.not_controller: _NOBODY,
    ErrorCode.request_timed_out: _NOBODY,
    ErrorCode.group_id_not_found: "see all groups with: korvet groups list",
    ErrorCode.non_empty_group: "stop its consumers and try again",
    ErrorCode.unknown_topic_or_partition: "see all topics with: korvet topics list",
    ErrorCode.unknown_server_error: "the broker's log says why",
    ErrorCode.kafka_storage_error: "Redis takes no writes now; the broker's log and 'korvet doctor' say why",
}

R = TypeVar("R", bound=ResponsePayload)
T = TypeVar("T")


class BrokerError(KorvetError):
    """A broker answered with a Kafka error code, or does not answer (then ``code`` is None)."""

    def __init__(self, message: str, code: ErrorCode | None = None) -> None:
        super().__init__(message)
        self.code = code


class ConnectionLost(BrokerError):
    """The connection broke before the answer: the client does not know whether the request was served."""


@dataclass(frozen=True, slots=True)
class Address:
    """A broker's address."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str) -> Address:
    """``host``, ``host:port`` or ``[ipv6]:port``.

    :raises ConfigError: if it is none of them.
    """
    host, _, port = text.rpartition(":") if not text.endswith("]") else (text, "", "")
    if not host:
        host, port = text, ""
    if port and not port.isdecimal():
        raise ConfigError(f"{text!r} is no address: want HOST:PORT, for example {DEFAULT_BOOTSTRAP}")
    return Address(host.strip("[]"), int(port or DEFAULT_PORT))


def error_name(code: ErrorCode) -> str:
    """An error's name as Kafka spells it."""
    return code.name.upper()


def check(code: ErrorCode, what: str, message: str | None = None) -> None:
    """Raise a broker's code and message about ``what``, with advice if there is some.

    :raises BrokerError: if the code is not NONE.
    """
    if code is not ErrorCode.none:
        text = f"{what}: {error_name(code)}" + (f": {message}" if message else "")
        raise BrokerError(f"{text.rstrip('.')}; {_ADVICE[code]}" if code in _ADVICE else text, code)


class Connection:
    """One blocking connection to one broker."""

    def __init__(self, address: Address, timeout_s: float) -> None:
        self.address = address
        self.is_open = True
        self._correlation_id = 0
        try:
            self._socket = socket.create_connection((address.host, address.port), timeout=timeout_s)
        except OSError as error:
            raise BrokerError(
                f"no broker answers at {address}: {error.strerror or error}; "
                "start one with 'korvet serve', or name another with --bootstrap-server"
            ) from None

    def close(self) -> None:
        self.is_open = False
        self._socket.close()

    def ask(self, request: RequestPayload, answer: type[R]) -> R:
        """Send a request and wait for its answer.

        :raises BrokerError: if the connection breaks, or the answer does not fit the schema.
        """
        self._correlation_id += 1
        name = type(request).__name__.removesuffix("Request")
        try:
            return self._ask(request, answer, name)
        except BaseException:
            # Else the next request would get this one's late answer.
            self.close()
            raise

    def _ask(self, request: RequestPayload, answer: type[R], name: str) -> R:
        try:
            self._socket.sendall(_encode(request, self._correlation_id))
            size = int.from_bytes(self._receive(4))
            if not 4 <= size <= MAX_FRAME_BYTES:
                raise BrokerError(f"{self.address} does not speak Kafka's protocol (a frame of {size} bytes)")
            return _decode(answer, self._receive(size))
        except TimeoutError:
            raise ConnectionLost(f"{self.address} did not answer {name} in time") from None
        except OSError as error:
            raise ConnectionLost(f"lost the connection to {self.address} during {name}: {error}") from None
        except DecodeError as error:
            raise BrokerError(f"the answer of {self.address} to {name} cannot be decoded: {error}") from None

    def _receive(self, size: int) -> bytes:
        parts = bytearray()
        while len(parts) < size:
            part = self._socket.recv(min(size - len(parts), 1 << 20))
            if not part:
                raise ConnectionLost(
                    f"{self.address} closed the connection: is it a Kafka broker, and does it support this request?"
                )
            parts += part
        return bytes(parts)


def _encode(request: RequestPayload, correlation_id: int) -> bytes:
    buffer = io.BytesIO()
    # kio's header types of versions 1 and 2 take the same fields, but mypy sees only their common base.
    header_schema: Any = request.__header_schema__
    header = header_schema(
        request_api_key=request.__api_key__,
        request_api_version=request.__version__,
        correlation_id=correlation_id,
        client_id=CLIENT_ID,
    )
    _writer(header_schema)(buffer, header)
    _writer(type(request))(buffer, request)
    body = buffer.getvalue()
    return len(body).to_bytes(4) + body


def _decode(answer: type[R], frame: bytes) -> R:
    header_schema: Any = answer.__header_schema__
    schema: Any = answer
    _, at = _reader(header_schema)(frame, 0)
    response: R = _reader(schema)(frame, at)[0]
    return response


@cache
def _writer(schema: Any) -> Callable[[io.BytesIO, Any], None]:
    writer: Callable[[io.BytesIO, Any], None] = entity_writer(schema)
    return writer


@cache
def _reader(schema: Any) -> Callable[[bytes, int], tuple[Any, int]]:
    reader: Callable[[bytes, int], tuple[Any, int]] = entity_reader(schema)
    return reader


class Client:
    """A cluster as an admin client sees it, for one thread."""

    def __init__(self, bootstrap: str = DEFAULT_BOOTSTRAP, timeout_s: float = 30.0) -> None:
        self._bootstrap = [parse_address(text.strip()) for text in bootstrap.split(",")]
        self._timeout_s = timeout_s
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
        return self._connection(Address(found[0].host, found[0].port)).ask(request, answer)

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
            except BrokerError as error:
                failures.append(error)
        raise failures[0]

    def _connection(self, address: Address) -> Connection:
        if address not in self._connections or not self._connections[address].is_open:
            self._connections[address] = Connection(address, self._timeout_s)
        return self._connections[address]


def may_pass(error: BrokerError) -> bool:
    """Whether the next attempt may succeed: the broker is away, another one leads or coordinates, or none is ready."""
    return error.code is None or error.code in _PASSING


def retried(attempt: Callable[[], T]) -> T:
    """An attempt's result; the attempt is repeated for a while if `may_pass` says that it may succeed.

    :raises BrokerError: the last one.
    """
    deadline = time.monotonic() + RETRY_WITHIN_S
    while True:
        try:
            return attempt()
        except BrokerError as error:
            if error.code not in _PASSING or time.monotonic() > deadline:
                raise
        time.sleep(RETRY_PAUSE_S)
