"""The largest requests that a client can send without a login, at a front-end in a process of its own.

A location is an array or a string of a request. At every location of every version, a request has one element too
many, and the front-end closes the connection. In the last version with that location, another has as many elements as
fit into 16 MiB. Others have as many as are allowed, all equal or all different. The calls that Redis gets stay within
the contract's bounds. The front-end answers another client meanwhile, and at the end its process is as small as before.
"""

from __future__ import annotations

import re
import socket
import struct
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from korvet.api import registry
from korvet.store.contract import FUNCTIONS
from korvet.wire.codec import most_elements
from korvet.wire.schema import is_flexible
from tests.api.raw import ask, created
from tests.support.broker import KorvetServer, running_broker
from tests.support.largest import Location, body, locations, tagged, varint
from tests.support.redis import Server, running_server
from tests.support.wire import request

WITHIN_S = 100.0
SIZE_BYTES = 16 << 20
RESIDENT_BYTES = 400 << 20
MOST_ARGS = 8000
"""The bound on the arguments of one command within a function, which Lua can unpack."""
MOST_CALL_BYTES = 5 << 20
PARTITIONS = 1500
"""More than any function takes of anything."""
API_VERSIONS = request(18, 0, 42)
_WORD = re.compile(rb'"((?:[^"\\]|\\.)*)"')


@dataclass(slots=True)
class Calls:
    """The calls that Redis got: the most arguments and bytes of each function and command."""

    arguments: dict[str, int] = field(default_factory=dict)
    size_bytes: dict[str, int] = field(default_factory=dict)
    ended: threading.Event = field(default_factory=threading.Event)

    def note(self, line: bytes) -> None:
        words = _WORD.findall(line)
        if not words:
            return
        name, count = words[0].decode().lower(), len(words) - 1
        if name in ("fcall", "fcall_ro"):
            name, count = words[1].decode(), count - 2 - int(words[2])
        if name == "echo":
            self.ended.set()
        self.arguments[name] = max(self.arguments.get(name, 0), count)
        self.size_bytes[name] = max(self.size_bytes.get(name, 0), len(line))


@dataclass(frozen=True, slots=True)
class Running:
    broker: KorvetServer
    redis: Server
    values: Mapping[str, Any]


@pytest.fixture(scope="module")
def running() -> Iterator[Running]:
    settings = {"auto.create.topics.enable": "false", "group.initial.rebalance.delay.ms": "0"}
    with running_server("redis") as server, running_broker(redis_url=server.url, broker=settings) as broker:
        topic = created(broker.port, partitions=PARTITIONS)
        (described,) = ask(broker.port, "metadata", 12, topics=[{"name": topic}])["topics"]
        before = resident_bytes(broker)
        yield Running(broker, server, values_of(topic, described["topic_id"]))
        assert broker.is_running
        assert "Traceback" not in broker.log
        assert resident_bytes(broker) < before + RESIDENT_BYTES


def values_of(topic: str, topic_id: Any) -> Mapping[str, Any]:
    """The values of a request's other fields: a topic that exists, and nothing that changes it."""
    numbered = {
        name: lambda at, name=name: f"{name}-{at}"
        for name in (
            "groups", "groups_names", "group_ids", "coordinator_keys", "transactional_ids", "member_id", "topic_names",
            "subscribed_topic_names", "states_filter", "types_filter", "state_filters", "configuration_keys",
        )
    }  # fmt: skip
    indexes = ("partition_index", "partition", "partitions", "partition_indexes", "index", "partition_id")
    return {
        **numbered,
        **{name: lambda at: at for name in (*indexes, "producer_id_filters", "broker_ids")},
        "name": lambda at: topic if at == 0 else f"{topic}-{at}",
        "topic": lambda at: topic if at == 0 else f"{topic}-{at}",
        "topic_id": topic_id,
        "resource_name": lambda at: topic if at == 0 else f"{topic}-{at}",
        "resource_type": 2,
        "resource_type_filter": 2,
        "resource_pattern_type": 3,
        "pattern_type_filter": 3,
        "operation": 3,
        "permission_type": 3,
        "group_id": "g",
        "transactional_id": "t",
        "v3_and_below_transactional_id": "t",
        "key": "g",
        "generation_id_or_member_epoch": -1,
        "generation_id": -1,
        "member_epoch": -1,
        "protocol_type": "consumer",
        "protocol_name": "range",
        "session_timeout": 10_000,
        "rebalance_timeout": 10_000,
        "session_epoch": -1,
        "acks": -1,
        "validate_only": True,
        "num_partitions": 1,
        "replication_factor": 1,
        "response_partition_limit": 2000,
        "endpoint_type": 1,
        "client_software_name": "test",
        "client_software_version": "1",
        "producer_id": 1,
    }


def resident_bytes(broker: KorvetServer) -> int:
    lines = Path(f"/proc/{broker.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmRSS"))


def framed(location: Location, data: bytes) -> bytes:
    key, version = location.key, location.version
    head = struct.pack(">hhih", key, version, 7, -1) + b"\x00" * is_flexible(key, version)
    return struct.pack(">i", len(head) + len(data)) + head + data


def outcome(running: Running, frame: bytes, watch: socket.socket) -> bool:
    """Send a frame; true if it gets an answer, false if its connection closes. ``watch`` gets answers meanwhile."""
    with socket.create_connection(("127.0.0.1", running.broker.port), timeout=WITHIN_S) as client:
        sending = threading.Thread(target=send, args=(client, frame))
        sending.start()
        served(watch)
        sending.join(WITHIN_S)
        try:
            head = receive(client, 4)
            size = struct.unpack(">i", head)[0] if head else 0
            return bool(head) and len(receive(client, size)) == size
        except ConnectionError:
            return False


def send(client: socket.socket, frame: bytes) -> None:
    try:
        client.sendall(frame)
    except OSError:
        return  # The front-end refused the frame before all of it had left.


def served(watch: socket.socket) -> None:
    watch.sendall(API_VERSIONS)
    size, correlation_id = struct.unpack(">ii", receive(watch, 8))
    assert correlation_id == 42
    assert len(receive(watch, size - 4)) == size - 4


def receive(client: socket.socket, size: int) -> bytes:
    parts = []
    while size:
        part = client.recv(min(size, 1 << 20))
        if not part:
            break
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def refused_frames(key: int, values: Mapping[str, Any]) -> Iterator[bytes]:
    """Frames with one element too many, for each location of each version; equal bodies come once."""
    api, seen = registry()[key], set[int]()
    for version in range(api.lowest, api.highest + 1):
        for location in locations(key, version):
            data = body(location, most_elements(key) + 1, values) if location.is_array else b""
            if data and hash(data) not in seen:
                seen.add(hash(data))
                yield framed(location, data)


def full_frames(key: int, values: Mapping[str, Any]) -> Iterator[bytes]:
    """Frames with 16 MiB in one array, in one string, or in the tagged fields of one entity or of the header."""
    version = registry()[key].highest
    whole = Location(key, version, (), False, True)
    for location in (whole, *locations(key, version)):
        if location.is_array:
            one = len(body(location, 1, values)) - len(body(location, 0, values))
            yield framed(location, body(location, SIZE_BYTES // one, values))
        elif location.path and is_flexible(key, version):
            yield framed(location, body(location, SIZE_BYTES, values))
        if location.is_entity and is_flexible(key, version):
            yield framed(location, tagged(location, SIZE_BYTES // 2, values))
    if is_flexible(key, version):
        head = struct.pack(">hhih", key, version, 7, -1) + varint(SIZE_BYTES // 2) + bytes(SIZE_BYTES)
        yield struct.pack(">i", len(head)) + head


def taken_frames(key: int, values: Mapping[str, Any]) -> Iterator[bytes]:
    """Frames with as many elements as allowed, all equal or all different, for each location in its last version."""
    api, seen = registry()[key], set[tuple[str, ...]]()
    for version in range(api.highest, api.lowest - 1, -1):
        for location in locations(key, version):
            if location.is_array and location.path not in seen:
                seen.add(location.path)
                yield framed(location, body(location, most_elements(key) - len(location.path) + 1, values))
                yield framed(location, body(location, PARTITIONS, values, are_distinct=True))


@pytest.fixture
def calls(running: Running) -> Iterator[Calls]:
    """The calls that Redis and its functions get during a test, by MONITOR."""
    found = Calls()
    with running.redis.client() as client:
        connection = client.connection_pool.get_connection()
        connection.send_command("MONITOR")
        assert connection.read_response() == b"OK"

        def follow() -> None:
            while not found.ended.is_set():
                found.note(connection.read_response(disable_decoding=True))

        following = threading.Thread(target=follow)
        following.start()
        yield found
        client.echo("until here")
        following.join(WITHIN_S)
        connection.disconnect()


@pytest.mark.parametrize("key", sorted(registry()), ids=lambda key: registry()[key].name)
def test_largest_requests_stay_within_the_bounds_of_every_function(running: Running, calls: Calls, key: int) -> None:
    with socket.create_connection(("127.0.0.1", running.broker.port), timeout=WITHIN_S) as watch:
        for frame in (*refused_frames(key, running.values), *full_frames(key, running.values)):
            assert not outcome(running, frame, watch), frame[:80]
        for frame in taken_frames(key, running.values):
            assert outcome(running, frame, watch), frame[:80]
    with running.redis.client() as client:
        client.echo("until here")
    assert calls.ended.wait(WITHIN_S)
    for name, count in calls.arguments.items():
        function = FUNCTIONS.get(name)
        assert count <= (MOST_ARGS if function is None else min(function.most_args, MOST_ARGS)), name
        assert calls.size_bytes[name] <= MOST_CALL_BYTES, name
