"""When the embedded server's append-only file is rewritten: against its own Valkey, and by what INFO tells."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import anyio
import pytest
import structlog.testing
from redis.asyncio import Redis

from korvet.server.processes import append_only_file
from korvet.server.processes.append_only_file import is_due, rewrite_when_due
from korvet.server.processes.embedded import Embedded, embedded_server
from tests.server.script import until

pytestmark = pytest.mark.anyio
MIB = 1 << 20
WITHIN_S = 60.0
LOOK_S = 0.02
GROWN = {
    "aof_rewrite_in_progress": "0", "aof_rewrite_scheduled": "0", "aof_current_size": "3000",
    "used_memory_dataset": "1499",
}  # fmt: skip


def test_a_file_is_due_if_half_of_it_is_of_no_use() -> None:
    assert is_due(GROWN, 2999)
    assert not is_due(GROWN, 3000)
    assert not is_due(GROWN | {"used_memory_dataset": "1500"}, 2999)


@pytest.mark.parametrize("state", ["in_progress", "scheduled"])
def test_a_file_is_not_due_while_a_rewrite_runs_or_waits(state: str) -> None:
    assert not is_due(GROWN | {f"aof_rewrite_{state}": "1"}, 2999)


@pytest.mark.parametrize("name", GROWN)
def test_a_file_is_not_due_if_the_server_does_not_tell(name: str) -> None:
    assert not is_due({field: value for field, value in GROWN.items() if field != name}, 2999)


def file_bytes(server: Embedded) -> int:
    found = 0
    for path in (server.data_dir / "appendonlydir").iterdir():
        # A rewrite renames and deletes files.
        with suppress(FileNotFoundError):
            found += path.stat().st_size
    return found


@asynccontextmanager
async def rewriting_server() -> AsyncIterator[tuple[Embedded, Redis]]:
    """A server whose file is rewritten from 4 MiB on, with a client."""
    with tempfile.TemporaryDirectory(prefix="kv") as name:
        async with (
            embedded_server(Path(name)) as server,
            Redis.from_url(server.url) as client,
            anyio.create_task_group() as tasks,
        ):
            tasks.start_soon(rewrite_when_due, server.send_command, server.data_dir / "appendonlydir", 4 * MIB, LOOK_S)
            yield server, client
            tasks.cancel_scope.cancel()


async def shrunk(server: Embedded) -> None:
    with anyio.fail_after(WITHIN_S):
        while file_bytes(server) > 3 * MIB:
            await anyio.sleep(LOOK_S)


async def test_growing_data_are_not_rewritten_and_deleted_ones_leave_the_disk() -> None:
    async with rewriting_server() as (server, client):
        for number in range(16):
            await client.set(f"live {number}", bytes(MIB))
        await anyio.sleep(20 * LOOK_S)
        assert (await client.info("stats"))["total_forks"] == 0
        assert file_bytes(server) > 16 * MIB
        await client.delete(*(f"live {number}" for number in range(2, 16)))
        await shrunk(server)
        assert await client.get("live 1") == bytes(MIB)
        assert (await client.info("stats"))["total_forks"] == 1


def held(server: Embedded) -> list[str]:
    """The append-only files that this process has open; the name of an unlinked one ends with " (deleted)"."""
    links = []
    for link in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            links.append(os.readlink(link))
    return [link for link in links if link.startswith(str(server.data_dir.resolve() / "appendonlydir"))]


async def test_replaced_files_are_freed_after_the_server_reported_the_end_of_its_rewrite(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(append_only_file, "_ANSWER_S", 0.2)
    async with rewriting_server() as (server, client):
        # The rewrite waits so long for each key.
        await client.config_set("rdb-key-save-delay", 1_500_000)
        async with client.pipeline(transaction=True) as pipeline:
            for _ in range(6):
                pipeline.set("same", bytes(MIB))
            await pipeline.execute()
        with anyio.fail_after(WITHIN_S):
            while not (await client.info("persistence"))["aof_rewrite_in_progress"]:
                await anyio.sleep(LOOK_S)
        os.kill(server.pid, signal.SIGSTOP)
        try:
            await anyio.sleep(1.0)
            assert {Path(name.split()[0]).suffix for name in held(server)} == {".rdb", ".aof", ".manifest"}
        finally:
            os.kill(server.pid, signal.SIGCONT)
        await until(lambda: any(name.endswith(".incr.aof (deleted)") for name in held(server)))
        await until(lambda: not held(server))
        assert file_bytes(server) < 3 * MIB


async def test_rewrites_that_fail_come_less_often_and_are_logged_until_one_succeeds() -> None:
    async with rewriting_server() as (server, client):
        directory, aside = server.data_dir / "appendonlydir", server.data_dir / "aside"
        directory.rename(aside)
        directory.touch()
        with structlog.testing.capture_logs() as lines:
            for _ in range(6):
                await client.set("same", bytes(MIB))
            with anyio.fail_after(WITHIN_S):
                while len(lines) < 3:
                    await anyio.sleep(LOOK_S)
        directory.unlink()
        aside.rename(directory)
        await shrunk(server)
    assert all("could not rewrite its append-only file" in line["event"] for line in lines)
    pauses = [line["again_in_s"] for line in lines]
    assert pauses == sorted(pauses) and pauses[-1] == pytest.approx(LOOK_S * 2 ** len(pauses))
