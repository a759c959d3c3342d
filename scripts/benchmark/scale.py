"""The growth of groups: the time until all members of a group have their assignment, and Redis's costs.

Members are raw connections that act as a consumer: they join, sync, heartbeat, and join again if a heartbeat says so.
Costs are read from the server's own counters: its memory, and the time it spent in a function.
"""

import asyncio
import contextlib
import uuid
from collections.abc import Coroutine, Sequence
from contextlib import AsyncExitStack
from typing import Any, Final

import redis
import uvloop

from scripts.benchmark.coordinator import answers
from tests.oracle import messages
from tests.oracle.script import error_codes

SIZES: Final = (10, 100, 1000)
COUNTS: Final = (10_000, 100_000)
OFFSETS: Final = 10
SAMPLED: Final = 1000
HEARTBEAT_S: Final = 0.2
HEARTBEATS: Final = 2000
WITHIN_S: Final = 240.0
AT_ONCE: Final = 500
JOIN, SYNC, HEARTBEAT, COMMIT, DELETE, CREATE_TOPICS, DELETE_TOPICS = 9, 5, 4, 8, 2, 6, 5  # versions
TOPIC: Final = "scale"
METADATA: Final = b"\x00\x01" + (1).to_bytes(4) + (5).to_bytes(2) + b"scale" + b"\xff\xff\xff\xff" + bytes(4)


class Wire:
    """One connection, one request at a time."""

    def __init__(self, address: str) -> None:
        self._host, port = address.rsplit(":", 1)
        self._port = int(port)

    async def __aenter__(self) -> "Wire":
        self._reader, self._writer = await asyncio.open_connection(self._host, self._port)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._writer.close()

    async def send(self, frame: bytes) -> bytes:
        """The frame that answers a frame, without its size."""
        self._writer.write(frame)
        size = int.from_bytes(await self._reader.readexactly(4))
        return await self._reader.readexactly(size)

    async def ask(self, api: str, version: int, **values: Any) -> Any:
        return messages.parse_answer(api, version, await self.send(messages.request_frame(api, version, values, 1)), 1)


class Member:
    """A member from its first join; ``generation`` is its assignment's."""

    def __init__(self, wire: Wire, group: str) -> None:
        self._wire = wire
        self._group = group
        self.id = ""
        self.generation = -1

    async def _join(self) -> Any:
        while True:
            joined = await self._wire.ask(
                "join_group", JOIN, group_id=self._group, member_id=self.id, protocol_type="consumer",
                session_timeout=120_000, rebalance_timeout=120_000,
                protocols=[{"name": "range", "metadata": METADATA}],
            )  # fmt: skip
            self.id = joined["member_id"]
            if joined["error_code"] != "MEMBER_ID_REQUIRED":
                return joined

    async def enter(self) -> int:
        """Join and sync until there is an assignment.

        :returns: the number of members in the leader's list if this is the leader, else 0.
        """
        while True:
            joined = await self._join()
            if joined["error_code"] == "NONE":
                members = [member["member_id"] for member in joined["members"]]
                synced = await self._wire.ask(
                    "sync_group", SYNC, group_id=self._group, member_id=self.id,
                    generation_id=joined["generation_id"], protocol_type="consumer", protocol_name="range",
                    assignments=[{"member_id": member, "assignment": bytes(60)} for member in members],
                )  # fmt: skip
                if synced["error_code"] == "NONE":
                    self.generation = joined["generation_id"]
                    return len(members)
            elif joined["error_code"] != "REBALANCE_IN_PROGRESS":
                raise RuntimeError(f"a join was answered {joined['error_code']}")

    def heartbeat(self) -> bytes:
        """The frame of a heartbeat."""
        values = {"group_id": self._group, "member_id": self.id, "generation_id": self.generation}
        return messages.request_frame("heartbeat", HEARTBEAT, values, 1)

    async def wait_for_rebalance(self) -> None:
        """Send heartbeats until an answer reports a rebalance."""
        while True:
            answer = await self._wire.send(self.heartbeat())
            if messages.parse_answer("heartbeat", HEARTBEAT, answer, 1)["error_code"] == "REBALANCE_IN_PROGRESS":
                return

    async def stay(self, complete: asyncio.Event, expected: int) -> None:
        """Be a member until a generation has all expected members."""
        while True:
            if await self.enter() == expected:
                complete.set()
            while not complete.is_set():
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(complete.wait(), HEARTBEAT_S)
                answer = await self._wire.send(self.heartbeat())
                if messages.parse_answer("heartbeat", HEARTBEAT, answer, 1)["error_code"] != "NONE":
                    break
            else:
                return


async def _timed(work: Sequence[Coroutine[Any, Any, object]]) -> float:
    started = asyncio.get_running_loop().time()
    async with asyncio.timeout(WITHIN_S):
        await asyncio.gather(*work)
    return asyncio.get_running_loop().time() - started


async def _after(first: Coroutine[Any, Any, object], members: Sequence[Member]) -> None:
    """Join again once a heartbeat says so: an earlier follower would keep its assignment, and the group would wait for
    it."""
    await first
    await asyncio.gather(*(member.enter() for member in members))


async def _joining(address: str, size: int) -> dict[str, float]:
    group = f"scale-{uuid.uuid4()}"
    async with AsyncExitStack() as stack:
        wires = [await stack.enter_async_context(Wire(address)) for _ in range(size + 1)]
        members = [Member(wire, group) for wire in wires]
        complete = asyncio.Event()
        all_s = await _timed([member.stay(complete, size) for member in members[:-1]])
        # The others join again at once. In truth their heartbeats would make them do so one by one.
        leader = members[0]
        again = [_after(leader.wait_for_rebalance(), members[:-1])]
        one_more_s = await _timed([members[-1].enter(), *again])
    return {f"join_{size}_s": all_s, f"one_more_{size}_s": one_more_s}


def joining(address: str, sizes: Sequence[int]) -> dict[str, float]:
    """Seconds until all members of a new group have their assignment in one generation, and until one more has."""
    results: dict[str, float] = {}
    for size in sizes:
        results |= uvloop.run(_joining(address, size))
    return results


# ---------------------------------------------------------------------- Redis's costs


def _commit(group: str, partitions: int) -> bytes:
    rows = [{"partition_index": at, "committed_offset": 123_456, "committed_metadata": ""} for at in range(partitions)]
    values = {
        "group_id": group, "member_id": "", "generation_id_or_member_epoch": -1,
        "topics": [{"name": TOPIC, "partitions": rows}],
    }  # fmt: skip
    return messages.request_frame("offset_commit", COMMIT, values, 1)


async def _over_connections(address: str, frames: Sequence[bytes]) -> None:
    """Send commits, and check that none is refused."""

    async def work(some: Sequence[bytes]) -> None:
        async with Wire(address) as wire:
            for frame in some:
                answer = messages.parse_answer("offset_commit", COMMIT, await wire.send(frame), 1)
                if errors := error_codes(answer):
                    raise RuntimeError(f"a commit was answered {errors}")

    await asyncio.gather(*(work(frames[start::50]) for start in range(50)))


async def _ask(address: str, api: str, version: int, **values: Any) -> None:
    async with Wire(address) as wire:
        if errors := error_codes(await wire.ask(api, version, **values)):
            raise RuntimeError(f"{api} was answered {errors}")


async def _delete(address: str, groups: Sequence[str]) -> None:
    async with Wire(address) as wire:
        for start in range(0, len(groups), AT_ONCE):
            await wire.ask("delete_groups", DELETE, groups_names=groups[start : start + AT_ONCE])


def _bytes_used(server: "redis.Redis") -> int:
    return int(server.info("memory")["used_memory"])


def _heartbeat_us(server: "redis.Redis", address: str) -> float:
    """Microseconds of the server's for a heartbeat of a settled member."""
    server.config_resetstat()
    answers(address, "heartbeat", 1.0)
    # The members' joins and leaves are a hundredth of the calls.
    return float(server.info("commandstats")["cmdstat_fcall"]["usec_per_call"])


def _idle_groups(server: "redis.Redis", address: str, counts: Sequence[int]) -> dict[str, float]:
    names = [f"idle-{uuid.uuid4()}" for _ in range(counts[-1])]
    before, results = _bytes_used(server), {"heartbeat_0_us": _heartbeat_us(server, address)}
    made = 0
    for count in counts:
        uvloop.run(_over_connections(address, [_commit(name, 1) for name in names[made:count]]))
        made = count
        results[f"group_{count}_bytes"] = (_bytes_used(server) - before) / count
        results[f"heartbeat_{count}_us"] = _heartbeat_us(server, address)
    uvloop.run(_over_connections(address, [_commit(name, 1 + OFFSETS) for name in names[:SAMPLED]]))
    more = _bytes_used(server)
    uvloop.run(_over_connections(address, [_commit(name, 1 + 2 * OFFSETS) for name in names[:SAMPLED]]))
    results["offset_bytes"] = (_bytes_used(server) - more) / (len(names[:SAMPLED]) * OFFSETS)
    uvloop.run(_delete(address, names))
    return results


async def _members(server: "redis.Redis", address: str, size: int) -> dict[str, float]:
    group = f"members-{uuid.uuid4()}"
    async with AsyncExitStack() as stack:
        members = [Member(await stack.enter_async_context(Wire(address)), group) for _ in range(size)]
        complete = asyncio.Event()
        await _timed([member.stay(complete, size) for member in members])
        used = sum(server.memory_usage(key, 0) or 0 for key in server.scan_iter(f"*{group}*", 1000)) / size
        server.config_resetstat()
        async with Wire(address) as wire:
            for _ in range(HEARTBEATS):
                await wire.send(members[0].heartbeat())
        taken = float(server.info("commandstats")["cmdstat_fcall"]["usec_per_call"])
    return {f"member_{size}_bytes": used, f"heartbeat_of_{size}_us": taken}


def group_costs(address: str, redis_url: str, sizes: Sequence[int], counts: Sequence[int]) -> dict[str, float]:
    """The bytes of groups, members and offsets in Redis, and a heartbeat's cost beside them."""
    uvloop.run(_ask(address, "create_topics", CREATE_TOPICS, topics=[
        {"name": TOPIC, "num_partitions": 1 + 2 * OFFSETS, "replication_factor": 1}
    ], timeout=10_000))  # fmt: skip
    with redis.Redis.from_url(redis_url) as server:
        results = _idle_groups(server, address, counts)
        for size in sizes:
            results |= uvloop.run(_members(server, address, size))
    uvloop.run(_ask(address, "delete_topics", DELETE_TOPICS, topic_names=[TOPIC], timeout=10_000))
    return results
