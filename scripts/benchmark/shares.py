"""Share consumers of one partition (KIP-932), as raw connections: librdkafka's would take more processor time than the
brokers.

A consumer acknowledges what it got with its next ShareFetch, as clients do by themselves (implicit), or by a
ShareAcknowledge before that, as one does that commits each poll (explicit). No offset may come twice.
"""

import asyncio
import threading
import time
import uuid
from collections.abc import Callable
from struct import pack, unpack_from
from typing import Any, Final, cast

import uvloop

from scripts.benchmark import rdkafka
from scripts.benchmark.calls import monitored
from scripts.benchmark.growth_jobs import PRODUCE, checked, produce_of
from scripts.benchmark.scale import Wire
from scripts.benchmark.worker import SETTLE_S, percentiles, send_paced, settings_of
from tests.oracle import messages

FETCH, ACKNOWLEDGE = 78, 79  # API keys
VERSION: Final = 2  # of both
HEARTBEAT, LEAVE, ALTER, METADATA = 1, -1, 1, 12  # versions, and a member's last epoch
GROUP: Final = 32  # the type of a config's resource
ACCEPT: Final = 1
WAIT_MS: Final = 500
RECORD_BYTES: Final = 256
"""More than a record of 100 bytes takes. Kafka looks through as many bytes of its log as a ShareFetch may get."""
ASK_AGAIN_S: Final = 0.1
ENDS_WITHIN_S: Final = 30.0
APPENDS: Final = 200
PAUSE_S: Final = 0.005
VALUE: Final = b"\x01\xc8\x01"  # in a record without a key: what comes before a value of 100 bytes
Ranges = list[tuple[int, int, int]]
"""First and last offset, and the number of the delivery."""


class Load:
    """What all consumers of a measurement do, and what they got.

    :param total: the end of the log.
    :param on_answer: is called with each answer that has records.
    """

    def __init__(
        self, topic_id: uuid.UUID, group: str, *, total: int, max_records: int = 500, is_explicit: bool = False,
        acknowledges: bool = True, on_answer: Callable[[bytes], None] | None = None,
    ) -> None:  # fmt: skip
        self.topic_id, self.group, self.total = topic_id.bytes, group, total
        self.max_records, self.is_explicit, self.acknowledges = max_records, is_explicit, acknowledges
        self.on_answer = on_answer
        self.deadline = float("inf")
        self.count = self.first_count = 0
        self.first_at = self.last_at = 0.0
        self._seen = bytearray(total)

    @property
    def is_over(self) -> bool:
        return self.count >= self.total or time.perf_counter() >= self.deadline

    def take(self, ranges: Ranges, answer: bytes) -> None:
        """Note records. :raises RuntimeError: some came before."""
        for first, last, _ in ranges:
            if self._seen.find(1, first, last + 1) >= 0:
                raise RuntimeError(f"offsets {first} to {last} came again")
            self._seen[first : last + 1] = b"\x01" * (last + 1 - first)
            self.count += last + 1 - first
        self.last_at = time.perf_counter()
        if not self.first_at:
            self.first_at, self.first_count = self.last_at, self.count
        if self.on_answer is not None:
            self.on_answer(answer)


class Consumer(asyncio.Protocol):
    """A share consumer over one connection. It goes on until the load is over."""

    def __init__(self, load: Load) -> None:
        self._load = load
        ids = load.group.encode(), uuid.uuid4().hex.encode()
        self._names = b"".join(pack("B", len(id) + 1) + id for id in ids)
        self._epoch = 0
        self._held: Ranges = []
        self._is_fetching = True
        self._received = bytearray()
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass
        self._fetch()

    def data_received(self, data: bytes) -> None:
        self._received += data
        if len(self._received) < 4 or len(self._received) < 4 + int.from_bytes(self._received[:4]):
            return
        answer = bytes(self._received[4:])
        self._received.clear()
        try:
            self._go_on(answer)
        except RuntimeError as error:
            self.connection_lost(error)

    def _go_on(self, answer: bytes) -> None:
        load, was_fetching = self._load, self._is_fetching
        self._held = acquired(answer) if was_fetching else _acknowledged(answer)
        # At the end, those that leave give back what they hold.
        if self._held and not load.is_over:
            load.take(self._held, answer)
        if load.is_over:
            self.connection_lost(None)
        elif self._held and load.is_explicit:
            self._send(ACKNOWLEDGE, b"\x00" + self._parts())
        else:
            self._fetch()

    def _fetch(self) -> None:
        load = self._load
        limits = pack(">iiiiixx", WAIT_MS, 1, RECORD_BYTES * load.max_records, *[load.max_records] * 2)
        self._send(FETCH, limits + self._parts() + b"\x01")

    def _parts(self) -> bytes:
        """The topics of a request: the one partition in the first one, and with what is to be acknowledged."""
        held = self._held if self._load.acknowledges else []
        if self._epoch and not held:
            return b"\x01"
        rows = b"".join(pack(">qqBbx", first, last, 2, ACCEPT) for first, last, _ in held)
        return b"\x02" + self._load.topic_id + b"\x02" + bytes(4) + _varint(len(held) + 1) + rows + bytes(2)

    def _send(self, api: int, body: bytes) -> None:
        self._is_fetching = api == FETCH
        frame = pack(">hhihx", api, VERSION, 1, -1) + self._names + pack(">i", self._epoch) + body + b"\x00"
        self._epoch += 1
        self._transport.write(pack(">i", len(frame)) + frame)

    def connection_lost(self, error: Exception | None) -> None:
        if not self.done.done():
            if error is None and not self._load.is_over:
                error = ConnectionError("the broker closed the connection")
            if error is not None:
                self.done.set_exception(error)
            else:
                self.done.set_result(None)
        self._transport.close()


def _varint(number: int) -> bytes:
    return bytes([number & 0x7F | 0x80]) + _varint(number >> 7) if number > 0x7F else bytes([number])


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        number |= (data[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if data[at - 1] < 0x80:
            return number, at


def acquired(answer: bytes) -> Ranges:
    """What a ShareFetch of one partition got. :raises RuntimeError: it was answered an error."""
    has_partition = answer[16] > 1
    # The answer's own error, the partition's, and that of its acknowledgements.
    if any(answer[9:11]) or (has_partition and (any(answer[38:40]) or any(answer[41:43]))):
        raise RuntimeError(f"a ShareFetch was answered {messages.parse_answer('share_fetch', VERSION, answer, 1)}")
    if not has_partition:
        return []
    size, at = _read_varint(answer, 53)
    number, at = _read_varint(answer, at + max(0, size - 1))
    return [unpack_from(">qqh", answer, at + 19 * row) for row in range(number - 1)]


def _acknowledged(answer: bytes) -> Ranges:
    if any(answer[9:11]) or any(answer[38:40]):
        raise RuntimeError(f"it was answered {messages.parse_answer('share_acknowledge', VERSION, answer, 1)}")
    return []


# ---------------------------------------------------------------------- the group


async def _assigned(wire: Wire, topic: str, group: str) -> uuid.UUID:
    """Make a share group that reads a topic from its beginning; returns the topic's id.

    Its one member leaves at once: neither broker asks a ShareFetch for a membership.
    """
    earliest = {"name": "share.auto.offset.reset", "config_operation": 0, "value": "earliest"}
    resource = {"resource_type": GROUP, "resource_name": group, "configs": [earliest]}
    await checked(wire, "incremental_alter_configs", ALTER, resources=[resource])
    member: dict[str, Any] = {"group_id": group, "member_id": str(uuid.uuid4()), "member_epoch": 0}
    subscribed: list[str] | None = [topic]
    while True:
        answer = await checked(wire, "share_group_heartbeat", HEARTBEAT, **member, subscribed_topic_names=subscribed)
        member["member_epoch"], subscribed = answer["member_epoch"], None
        if answer["assignment"] and (topics := answer["assignment"]["topic_partitions"]):
            await checked(wire, "share_group_heartbeat", HEARTBEAT, **{**member, "member_epoch": LEAVE})
            return cast(uuid.UUID, topics[0]["topic_id"])
        await asyncio.sleep(ASK_AGAIN_S)


async def _begun(address: str, topic: str, consumers: int, **settings: Any) -> "tuple[Load, asyncio.Future[Any]]":
    """Consumers of a new group at work, until their load is over."""
    host, port = address.rsplit(":", 1)
    group = f"shares-{uuid.uuid4()}"
    async with Wire(address) as wire:
        load = Load(await _assigned(wire, topic, group), group, **settings)
    loop = asyncio.get_running_loop()
    made = [await loop.create_connection(lambda: Consumer(load), host, int(port)) for _ in range(consumers)]
    return load, asyncio.gather(*(consumer.done for _, consumer in made))


# ---------------------------------------------------------------------- the jobs


async def _shares(
    address: str, topic: str, total: int, consumers: int, records: int, acknowledgement: str, seconds: float
) -> dict[str, float]:
    load, done = await _begun(
        address, topic, consumers, total=total, max_records=records, is_explicit=acknowledgement == "explicit",
    )  # fmt: skip
    load.deadline = time.perf_counter() + seconds
    await asyncio.wait_for(done, seconds + ENDS_WITHIN_S)
    return {
        "count": load.count,
        "records_per_s": (load.count - load.first_count) / (load.last_at - load.first_at),
    }


def shares(address: str, topic: str, **settings: Any) -> dict[str, float]:
    """The records a second that share consumers get of a log, and acknowledge; from the first answer on."""
    client = rdkafka.Producer(topic, settings_of(address))
    total = client.end()
    client.close()
    return uvloop.run(_shares(address, topic, total, **settings))


async def _latency(address: str, topic: str, consumers: int, seconds: float, rate: int) -> dict[str, float]:
    total, taken = int(rate * (seconds + SETTLE_S)), list[int]()

    def note(answer: bytes) -> None:
        now, at = time.monotonic_ns(), answer.find(VALUE)
        while at >= 0:
            at += len(VALUE)
            taken.append(now - int.from_bytes(answer[at : at + 8]))
            at = answer.find(VALUE, at)

    _, done = await _begun(address, topic, consumers, total=total, on_answer=note)
    producer, stopped = rdkafka.Producer(topic, settings_of(address, linger_ms="0")), threading.Event()
    sender = threading.Thread(target=send_paced, args=(producer, rate, seconds + SETTLE_S, stopped))
    sender.start()
    try:
        await asyncio.wait_for(done, seconds + ENDS_WITHIN_S)
    finally:
        stopped.set()
        sender.join()
    producer.flush()
    producer.close()
    return percentiles(taken, rate)


def latency(**settings: Any) -> dict[str, float]:
    """Milliseconds from just before the produce call to the arrival at one of the share consumers that wait."""
    return uvloop.run(_latency(**settings))


async def _waiters(address: str, topic: str, redis_url: str, consumers: int, seconds: float) -> dict[str, float]:
    # Without acknowledgements, so that each call is a waiter's.
    load, done = await _begun(address, topic, consumers, total=APPENDS + 1, acknowledges=False)
    await asyncio.sleep(SETTLE_S)
    calls = list[int]()
    with monitored(redis_url, calls, topic):
        await asyncio.sleep(seconds)
    async with Wire(address) as wire:
        with monitored(redis_url, calls, "korvet_share_acquire"):
            for _ in range(APPENDS):
                await checked(wire, "produce", PRODUCE, **produce_of(topic, [0]))
                await asyncio.sleep(PAUSE_S)
    if load.count != APPENDS:
        raise RuntimeError(f"{load.count} of {APPENDS} records arrived")
    load.deadline = 0.0
    await asyncio.wait_for(done, ENDS_WITHIN_S)
    return {"idle_calls_per_s": calls[0] / seconds, "calls_per_append": calls[1] / APPENDS}


def waiters(**settings: Any) -> dict[str, float]:
    """Calls of Redis about a topic while share consumers wait, and their acquisitions for each append of a record."""
    return uvloop.run(_waiters(**settings))
