"""Groups of the consumer protocol: the time to settle as members come, and the cost of a heartbeat then.

Members are raw connections that act as a consumer: they join, and send heartbeats at intervals, and at once when an
answer changes their partitions.
"""

import asyncio
import statistics
import time
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Final

import redis
import uvloop

from scripts.benchmark.scale import WITHIN_S, Wire
from tests.oracle import messages

HEARTBEAT, CREATE_TOPICS, DELETE_TOPICS = 1, 7, 6  # versions
HEARTBEAT_S: Final = 0.2
HEARTBEATS: Final = 2000
PARTITIONS_EACH: Final = 2


class Consumer:
    """A member; ``epoch`` is its own, ``owned`` its partitions of the one topic."""

    def __init__(self, wire: Wire, group: str, topic: str) -> None:
        self._wire = wire
        self._group = group
        self._topic = topic
        self._topic_id: uuid.UUID | None = None
        self._id = str(uuid.uuid4())
        self.epoch = 0
        self.owned: frozenset[int] = frozenset()
        self._told: frozenset[int] | None = None

    def heartbeat(self) -> bytes:
        """The frame of a heartbeat, which names the owned partitions if that is new; the first one joins."""
        rows = [{"topic_id": self._topic_id, "partitions": sorted(self.owned)}] if self.owned else []
        values: dict[str, Any] = {
            "group_id": self._group, "member_id": self._id, "member_epoch": self.epoch,
            "topic_partitions": None if self.owned == self._told else rows,
            "rebalance_timeout": 120_000 if self.epoch == 0 else -1,
            "subscribed_topic_names": [self._topic] if self.epoch == 0 else None,
        }  # fmt: skip
        return messages.request_frame("consumer_group_heartbeat", HEARTBEAT, values, 1)

    async def beat(self) -> bool:
        """One heartbeat. Returns True if it changed the partitions; the next one reports them."""
        answer = messages.parse_answer(
            "consumer_group_heartbeat", HEARTBEAT, await self._wire.send(self.heartbeat()), 1
        )
        if answer["error_code"] == "COORDINATOR_NOT_AVAILABLE":
            return False
        if answer["error_code"] != "NONE":
            raise RuntimeError(f"a heartbeat was answered {answer['error_code']}: {answer['error_message']}")
        self._told, self.epoch = self.owned, answer["member_epoch"]
        if answer["assignment"] is not None:
            topics = answer["assignment"]["topic_partitions"]
            self._topic_id = topics[0]["topic_id"] if topics else self._topic_id
            self.owned = frozenset(partition for topic in topics for partition in topic["partitions"])
        return self.owned != self._told


class Group:
    """The members that came so far, and their settling."""

    def __init__(self, partitions: int) -> None:
        self._partitions = partitions
        self.members: list[Consumer] = []
        self.settled = asyncio.Event()

    def look(self, expected: int) -> None:
        """Settle the group if all members have one epoch and own every partition once."""
        if len(self.members) == expected and len({member.epoch for member in self.members}) == 1:
            owned = [partition for member in self.members for partition in member.owned]
            if sorted(owned) == list(range(self._partitions)):
                self.settled.set()

    async def stay(self, member: Consumer, expected: int) -> None:
        """Be a member until the group is settled with all expected members."""
        while not self.settled.is_set():
            has_changed = await member.beat()
            self.look(expected)
            if not has_changed:
                try:
                    await asyncio.wait_for(self.settled.wait(), HEARTBEAT_S)
                except TimeoutError:
                    continue


@asynccontextmanager
async def _settled(address: str, size: int) -> AsyncIterator[tuple[list[Consumer], list[Wire], float]]:
    """A settled group's members and their connections, and the seconds from the second's arrival on."""
    name = f"consumers-{uuid.uuid4()}"
    partitions = PARTITIONS_EACH * size
    async with AsyncExitStack() as stack:
        wires = [await stack.enter_async_context(Wire(address)) for _ in range(size)]
        topics = [{"name": name, "num_partitions": partitions, "replication_factor": 1}]
        await wires[0].ask("create_topics", CREATE_TOPICS, topics=topics, timeout=30_000)
        group = Group(partitions)
        consumers = [Consumer(wire, name, name) for wire in wires]
        async with asyncio.timeout(WITHIN_S):
            group.members = consumers[:1]
            await group.stay(consumers[0], 1)
            group.settled.clear()
            group.members = consumers
            started = time.perf_counter()
            await asyncio.gather(*(group.stay(consumer, size) for consumer in consumers))
            taken = time.perf_counter() - started
        yield consumers, wires, taken
        await wires[0].ask("delete_topics", DELETE_TOPICS, topics=[{"name": name}], timeout=30_000)


async def _latency_ms(member: Consumer, wire: Wire) -> float:
    """The median of a settled member's heartbeats, one after the other."""
    frame, taken = member.heartbeat(), []
    for _ in range(HEARTBEATS):
        began = time.perf_counter()
        await wire.send(frame)
        taken.append(time.perf_counter() - began)
    return statistics.median(taken) * 1000


async def _settling(address: str, size: int) -> dict[str, float]:
    async with _settled(address, size) as (members, wires, seconds):
        return {f"settle_{size}_s": seconds, f"heartbeat_of_{size}_ms": await _latency_ms(members[0], wires[0])}


async def _costs(server: "redis.Redis", address: str, size: int) -> dict[str, float]:
    async with _settled(address, size) as (members, wires, _):
        server.config_resetstat()
        await _latency_ms(members[0], wires[0])
        return {f"heartbeat_of_{size}_us": float(server.info("commandstats")["cmdstat_fcall"]["usec_per_call"])}


def settling(address: str, sizes: Sequence[int]) -> dict[str, float]:
    """Seconds from the second member's arrival, with all others, to a settled group; ms of a heartbeat then."""
    results: dict[str, float] = {}
    for size in sizes:
        results |= uvloop.run(_settling(address, size))
    return results


def costs(address: str, redis_url: str, sizes: Sequence[int]) -> dict[str, float]:
    """Microseconds of Redis for a settled member's heartbeat."""
    results: dict[str, float] = {}
    with redis.Redis.from_url(redis_url) as server:
        for size in sizes:
            results |= uvloop.run(_costs(server, address, size))
    return results
