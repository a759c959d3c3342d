"""Blocks and footers on a disk: shared, bounded, checked, and never a reader's error."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import anyio
import pytest

from korvet.errors import ConfigError
from korvet.tier import disk as module
from korvet.tier.blocks import Blocks, Gets
from korvet.tier.disk import Disk
from korvet.tier.segment import BLOCK_BYTES
from tests.tier.test_blocks import EVERYTHING, Store, halves, stored

pytestmark = pytest.mark.anyio


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    disk = Disk(tmp_path / "cache", 64 << 20)
    yield disk
    disk.close()


def files(root: Path) -> list[Path]:
    return sorted(one for one in root.rglob("*") if one.is_file())


def sizes(root: Path) -> set[int]:
    found: set[int] = set()
    for path in files(root):
        # The cache may remove it meanwhile.
        with suppress(FileNotFoundError):
            found.add(path.stat().st_size)
    return found


async def written(root: Path, count: int) -> None:
    with anyio.fail_after(30):
        while len(files(root)) != count or any(one.name.startswith("new-") for one in files(root)):
            await anyio.sleep(0.005)


async def test_blocks_that_left_the_memory_come_from_the_disk(disk: Disk, tmp_path: Path) -> None:
    store, made = Store(), halves(6)
    one = await stored(Gets(store), made)
    assert await Blocks(EVERYTHING, disk).batches(one, 0, EVERYTHING) == b"".join(made)
    asked = len(store.reads)
    await written(tmp_path / "cache", 4)
    # Another process begins, and the store is away.
    store.fails = 1000
    again = Blocks(EVERYTHING, Disk(tmp_path / "cache", 64 << 20))
    assert await again.batches(one, 0, EVERYTHING) == b"".join(made)
    assert (len(store.reads), again.hits, again.misses) == (asked, 0, 0)
    assert again.disk is not None
    assert again.disk.hits == 4


@pytest.mark.parametrize("damage", ["flipped", "cut off", "empty", "longer"])
async def test_damaged_files_are_not_served(disk: Disk, tmp_path: Path, damage: str) -> None:
    store, made = Store(), halves(4)
    one = await stored(Gets(store), made)
    await Blocks(EVERYTHING, disk).batches(one, 0, EVERYTHING)
    await written(tmp_path / "cache", 3)
    for path in files(tmp_path / "cache"):
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        changed = {"flipped": data, "cut off": data[:100], "empty": b"", "longer": data + bytes(4 << 20)}
        path.write_bytes(bytes(changed[damage]))
    asked = len(store.reads)
    assert await Blocks(EVERYTHING, disk).batches(one, 0, EVERYTHING) == b"".join(made)
    assert len(store.reads) > asked
    with anyio.fail_after(30):
        while sizes(tmp_path / "cache") != {BLOCK_BYTES, one.member.footer_bytes}:
            await anyio.sleep(0.005)


async def test_least_recently_read_files_go(tmp_path: Path) -> None:
    root = tmp_path / "cache"
    disk = Disk(root, 16 * 1000)
    for number in range(10):
        disk.add(str(number), bytes(1000))
        await written(root, number + 1)
    for path in files(root):
        os.utime(path, (1, 1))
    assert list(await disk.read(["3", "7", "missing"])) == ["3", "7"]
    for number in range(10, 30):
        disk.add(str(number), bytes(1000))
        await anyio.sleep(0.01)
    with anyio.fail_after(30):
        while "29" not in await disk.read(["29"]):
            await anyio.sleep(0.005)
    assert len(files(root)) <= 16
    assert list(await disk.read([str(number) for number in range(10)])) in ([], ["3", "7"])
    disk.close()


async def test_file_of_a_process_that_died_goes_in_time_and_no_others(tmp_path: Path) -> None:
    root = tmp_path / "cache"
    disk = Disk(root, 1 << 20)
    old, own = root / f"new-{0:032x}", [root / "new-year.txt", root / "go" / "main.go", root / "letter"]
    (root / "go").mkdir()
    for path in (old, *own):
        # The cache is larger than it may be, and somebody keeps other files there.
        path.write_bytes(bytes(1 << 20))
        os.utime(path, (time.time() - 7200,) * 2)
    disk.add("a", bytes(10))
    with anyio.fail_after(30):
        while old.exists() or not await disk.read(["a"]):
            await anyio.sleep(0.005)
    assert all(path.exists() for path in own)
    disk.close()


async def test_disk_that_fails_or_hangs_is_left_alone_and_costs_no_reader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, store, made = tmp_path / "cache", Store(), halves(2)
    one = await stored(Gets(store), made)
    disk = Disk(root, 64 << 20)
    path = disk._path(f"memory {one.path} -1")
    path.parent.mkdir(parents=True)
    os.mkfifo(path)
    monkeypatch.setattr(module, "_READ_WITHIN_S", 0.05)
    assert await Blocks(EVERYTHING, disk).batches(one, 0, EVERYTHING) == b"".join(made)
    # Whoever hangs there is let go.
    os.close(os.open(path, os.O_RDWR))
    assert await disk.read(["x"]) == {}
    assert [path.name for path in files(root) if path.is_file()] == []
    monkeypatch.setattr(module, "_REST_S", 0.0)
    broken = Disk(tmp_path / "other", 64 << 20)
    (tmp_path / "other").rmdir()
    (tmp_path / "other").write_bytes(b"no directory")
    assert await Blocks(EVERYTHING, broken).batches(one, 0, EVERYTHING) == b"".join(made)
    disk.close()
    broken.close()


def test_directory_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ConfigError, match="file"):
        Disk(tmp_path / "file", 1 << 30)
