"""Rounds that wait for replicas' acknowledgments, on a primary whose replica is far away."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial

import anyio
import pytest
from anyio.abc import ByteStream
from anyio.streams.memory import MemoryObjectReceiveStream

from korvet.errors import StoreError, StoreUnavailable
from korvet.store.log.partitions.replicas import Disk, UnconfirmedAppend, read_replication
from tests.store.logs import batch, front, header
from tests.store.test_log_transactions import Coordinator
from tests.support.redis import Kind, Server, running_server
from tests.support.topologies import until
from tests.wire.whole import Whole, built

pytestmark = pytest.mark.anyio

FAR_S = 0.35
"""A time that is longer than one WAIT."""


@asynccontextmanager
async def far_away(port: int) -> AsyncIterator[int]:
    """A port that delays a server's answers."""
    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, partial(_carry, port))
        yield listener.extra(anyio.abc.SocketAttribute.local_port)
        tasks.cancel_scope.cancel()


async def _carry(port: int, near: ByteStream) -> None:
    async with near, await anyio.connect_tcp("127.0.0.1", port) as far, anyio.create_task_group() as tasks:
        tasks.start_soon(_pass_on, near, far, 0.0)
        await _pass_on(far, near, FAR_S)
        tasks.cancel_scope.cancel()


async def _pass_on(source: ByteStream, target: ByteStream, late_s: float) -> None:
    """Pass each piece on with the same delay, even if many are under way."""
    put, get = anyio.create_memory_object_stream[tuple[float, bytes]](math.inf)
    async with put, get, anyio.create_task_group() as tasks:
        tasks.start_soon(_hand_over, get, target)
        with suppress(anyio.EndOfStream, anyio.BrokenResourceError):
            while True:
                piece = await source.receive()
                put.send_nowait((anyio.current_time() + late_s, piece))
        tasks.cancel_scope.cancel()


async def _hand_over(pieces: MemoryObjectReceiveStream[tuple[float, bytes]], target: ByteStream) -> None:
    with suppress(anyio.BrokenResourceError):
        async for due, piece in pieces:
            await anyio.sleep_until(due)
            await target.send(piece)


async def test_replica_that_is_always_late_acknowledges_in_the_end() -> None:
    """Every round begins with a later write, because other producers write all the time."""
    with running_server("valkey", tcp=True) as primary:
        async with far_away(primary.port) as port:
            options = {"replicaof": f"127.0.0.1 {port}", "repl-diskless-sync-delay": "0"}
            with running_server("valkey", tcp=True, options=options):
                await anyio.to_thread.run_sync(_until_it_follows, primary)
                await _confirm_while_others_write(primary.url)


def _until_it_follows(primary: Server) -> None:
    with primary.client() as client:
        until(lambda: client.info("replication").get("slave0", {}).get("state") == "online", "it follows")


async def _confirm_while_others_write(url: str) -> None:
    data = batch(1)
    async with front(url) as one, anyio.create_task_group() as tasks:
        partition = await one.partition()
        replicas = one.log.replicas

        async def confirm(timeout_s: float = 20.0) -> bool:
            appending = one.log.append(partition, header(data), data)
            append = replicas.hold(partition, appending.reply, 2)
            assert (await appending).code == 0
            return await replicas.confirmed(append, timeout_s)

        async def write() -> None:
            while True:
                await confirm()

        await replicas.ask(partition.keys.meta, on_disk=False)
        assert [replicas.lacking(partition.keys.meta, copies, on_disk=False) for copies in (2, 3)] == [
            "", "2 servers are in sync, fewer than min.insync.replicas=3",
        ]  # fmt: skip
        tasks.start_soon(write)
        assert [await confirm() for _ in range(2)] == [True] * 2
        assert not await confirm(0)
        tasks.cancel_scope.cancel()


async def test_repaired_append_is_not_acknowledged_by_a_later_server() -> None:
    """The transaction's first batch in a partition needs a repair; its request may wait when the server is lost."""
    with running_server("valkey", options={"appendonly": "yes", "appendfsync": "always"}) as server:
        async with front(server.url) as one:
            partition = await one.partition()
            appending = one.log.append(partition, *built(Whole(), producer=(5, 0, 0), attributes=0x10), Coordinator(7))
            append = one.log.replicas.hold(partition, appending.reply, 1)
            assert (await appending).code == 0
            before = one.store.run_id(partition.keys.log)
            await anyio.to_thread.run_sync(partial(server.restart, crash=True))
            with anyio.fail_after(20):
                while one.store.run_id(partition.keys.log) == before:
                    await anyio.sleep(0.01)
            with pytest.raises(StoreUnavailable) as raised:
                await one.log.replicas.confirmed(append, 20)
            assert raised.value.outcome_unknown


def test_replicas_in_sync_are_read_from_info() -> None:
    info = (
        "# Replication\r\nrole:master\r\nconnected_slaves:4\r\n"
        "slave0:ip=127.0.0.1,port=1,state=online,offset=90,lag=0\r\n"
        "slave1:ip=127.0.0.1,port=2,state=online,offset=100,lag=11,type=replica\r\n"
        "slave2:ip=127.0.0.1,port=3,state=wait_bgsave,offset=0,lag=0\r\n"
        "slave3:ip=127.0.0.1,port=4,state=online,offset=80,lag=1\r\n"
        "master_replid:a\r\nmaster_repl_offset:100\r\n"
    )
    found = read_replication(info.encode())
    assert (found.offset, found.in_sync) == (100, 2)
    assert [found.having(offset) for offset in (80, 81, 91, 101)] == [3, 2, 1, 0]
    assert read_replication(info.replace("role:master", "role:slave").encode()).in_sync == 0


@pytest.mark.parametrize("kind", ["valkey", "redis"])
async def test_server_that_does_not_know_its_disk_fails_the_wait(kind: Kind) -> None:
    """Valkey without an append-only file, and Redis 7.0."""
    with running_server(kind, options={"appendonly": "no"}) as server:
        async with front(server.url) as one:
            with pytest.raises(
                StoreError, match=r"korvet\.acks\.fsync needs Redis 7\.2 or Valkey, with appendonly yes"
            ):
                await one.log.replicas.flushed([(await one.partition()).keys.meta + ":touched"], 20)


async def test_question_about_the_disk_does_not_join_one_about_replicas_alone() -> None:
    """Nobody would know of the missing file, and the batch would be stored."""
    with running_server("valkey", options={"appendonly": "no"}) as server:
        async with front(server.url) as one:
            key = (await one.partition()).keys.meta
            replicas = one.log.replicas
            await asyncio.gather(replicas.ask(key, on_disk=False), replicas.ask(key, on_disk=True))
            assert "appendonly is no" in (replicas.lacking(key, 1, on_disk=True) or "")


def disk(time_ms: int, *, is_idle: bool = True, rewrites: int = 0) -> Disk:
    return Disk("history", True, is_idle, time_ms, rewrites)


@pytest.mark.parametrize(
    ("seen", "is_flushed"),
    [
        ([disk(0), disk(1000), disk(1001)], True),
        ([disk(0), disk(999), disk(1000)], False),
        ([disk(0), disk(1000, is_idle=False), disk(1050, is_idle=False)], False),
        ([disk(0), disk(1000, is_idle=False), disk(1050)], True),
        ([disk(0, is_idle=False), disk(1000), disk(1050)], False),
        ([disk(0), disk(1000), disk(1050, rewrites=1)], False),
        ([disk(0), disk(-1000), disk(500)], False),
    ],
)  # fmt: skip
async def test_flush_is_proved_by_its_begin_and_its_end(seen: Sequence[Disk], is_flushed: bool) -> None:
    append = UnconfirmedAppend("key", (), 1, "history", awaits_disk=True)
    for one in seen:
        append.see(one)
    assert append.awaits_flush is not is_flushed
