"""Objects: never replaced, durable before anything may refer to them, and owned by one Redis."""

from __future__ import annotations

import errno
import os
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest
from obstore.store import MemoryStore

from korvet.tier.objects import Directory, ObjectExists, ObjectMissing, Objects, Owner, TierAway, open_objects
from tests.tier.test_blocks import Store

pytestmark = pytest.mark.anyio

PATH = "default/orders/00000000000000000000000000001234/3/00000000000000000000-01JDXYZ0000000000000000000.segment"
PARTS: list[bytes | memoryview] = [b"batches", memoryview(b"xfooterx")[1:-1]]


@pytest.fixture(params=["memory", "directory"])
async def objects(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Objects]:
    yield Objects(MemoryStore(), "memory") if request.param == "memory" else Directory(tmp_path / "tier")


async def test_ranges_of_an_object_are_read(objects: Objects) -> None:
    await objects.put(PATH, PARTS)
    assert bytes(await objects.read(PATH, 7, 13)) == b"footer"
    assert bytes(await objects.read(PATH, 7, 14)) == b"footer"
    for start in (13, 14, 1000):
        assert bytes(await objects.read(PATH, start, start + 1)) == b""


async def test_objects_are_listed_by_the_begin_of_their_names(objects: Objects) -> None:
    for name in ("05-a.segment", "05-b.segment", "06-a.segment", "050.snapshot"):
        await objects.put(f"a/0/{name}", PARTS)
    await objects.put("a/05/05-c.segment", PARTS)
    assert sorted(await objects.beginning("a/0", "05-")) == [("a/0/05-a.segment", 13), ("a/0/05-b.segment", 13)]
    assert await objects.beginning("a/1", "05-") == []


async def test_put_may_be_repeated_but_replaces_nothing(objects: Objects) -> None:
    for _ in range(2):
        await objects.put(PATH, PARTS)
    for other in (
        [b"batches", b"Footer"],
        [b"batches", b"xfooter"],
        [b"batch", b"footer"],
        [b"batches", b"foot"],
        [b"batches", b"footer", b"x"],
    ):
        with pytest.raises(ObjectExists, match="exists with other bytes"):
            await objects.put(PATH, other)
    assert bytes(await objects.read(PATH, 0, 100)) == b"batchesfooter"


async def test_one_of_many_puts_at_once_wins(objects: Objects) -> None:
    won: list[int] = []

    async def put(number: int) -> None:
        try:
            await objects.put(PATH, [b"%d" % number])
            won.append(number)
        except ObjectExists:
            pass

    async with anyio.create_task_group() as tasks:
        for number in range(10, 20):
            tasks.start_soon(put, number)
    assert [b"%d" % number for number in won] == [bytes(await objects.read(PATH, 0, 10))]


async def test_deleted_object_is_missing_and_may_be_deleted_again(objects: Objects) -> None:
    await objects.put(PATH, PARTS)
    for _ in range(2):
        await objects.delete(PATH)
    with pytest.raises(ObjectMissing, match="does not exist"):
        await objects.read(PATH, 0, 1)


@pytest.mark.parametrize("path", ["", "/a", "a//b", "../a", "a/../b", "a/.new", "a b", "a/", "é"])
async def test_path_that_leads_elsewhere_is_refused(objects: Objects, path: str) -> None:
    with pytest.raises(ValueError, match="is no path of an object"):
        await objects.put(path, PARTS)
    with pytest.raises(ValueError, match="is no path of an object"):
        await objects.delete(path)


async def test_store_that_keeps_the_rules_passes_its_trial(objects: Objects) -> None:
    await objects.try_out()


class Replacing(Objects):
    """A store that ignores the condition of a PUT."""

    async def _create(self, path: str, parts: Sequence[bytes | memoryview]) -> None:
        await self.delete(path)
        await super()._create(path, parts)


async def test_store_that_replaces_objects_fails_its_trial() -> None:
    store = MemoryStore()
    with pytest.raises(TierAway, match="memory replaces objects"):
        await Replacing(store, "memory").try_out()
    assert store.list().collect() == []


async def test_prefix_has_one_owner_until_another_takes_over(objects: Objects) -> None:
    assert await objects.owner("ns") is None
    mine = await objects.claim("ns", "cluster", "first", None)
    assert mine == Owner("cluster", "first", 1) == await objects.owner("ns")
    # The answer was lost, and the call is repeated.
    assert await objects.claim("ns", "cluster", "first", None) == mine
    # A second Redis that found no owner a moment ago.
    assert await objects.claim("ns", "other", "second", None) == mine
    taken = await objects.claim("ns", "other", "second", mine)
    assert taken == Owner("other", "second", 2) == await objects.owner("ns")
    # The former owner, late.
    assert await objects.claim("ns", "cluster", "third", mine) == taken


async def test_one_of_many_claims_wins_and_all_learn_it(objects: Objects) -> None:
    answers: list[Owner] = []

    async def claim(number: int) -> None:
        answers.append(await objects.claim("ns", "cluster", str(number), None))

    async with anyio.create_task_group() as tasks:
        for number in range(8):
            tasks.start_soon(claim, number)
    assert set(answers) == {await objects.owner("ns")}


async def test_owner_of_many_generations_is_found_by_few_reads() -> None:
    store, owner = Store(), None
    for number in range(1, 101):
        owner = await store.claim("ns", "cluster", str(number), owner)
        store.reads.clear()
        assert await store.owner("ns") == Owner("cluster", str(number), number)
        assert len(store.reads) <= 2 * number.bit_length() + 1
        assert await store.owner("ns", Owner("cluster", "1", 1)) == owner
        store.reads.clear()
        assert await store.owner("ns", owner) == owner
        assert len(store.reads) == 1


async def test_damaged_owner_is_no_free_prefix(objects: Objects) -> None:
    await objects.put("ns/owner/00000000000000000001.json", [b"{"])
    with pytest.raises(TierAway, match="does not name an owner"):
        await objects.owner("ns")


class Trace:
    """The calls that make files and directories durable, with the names that they touch, in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, root: Path) -> None:
        self.calls: list[tuple[str, str]] = []
        self._root = root
        for name in ("mkdir", "link", "fsync", "unlink"):
            self._wrap(monkeypatch, name, getattr(os, name))

    def _wrap(self, monkeypatch: pytest.MonkeyPatch, name: str, call: Any) -> None:
        def traced(*arguments: Any, **options: Any) -> Any:
            result = call(*arguments, **options)
            touched = arguments[1] if name == "link" else arguments[0]
            path = Path(os.readlink(f"/proc/self/fd/{touched}")) if name == "fsync" else Path(touched)
            if path.is_relative_to(self._root.parent):
                named = "new file" if path.parent.name == ".new" else str(path.relative_to(self._root.parent))
                self.calls.append((name, named))
            return result

        monkeypatch.setattr(os, name, traced)


async def test_file_and_its_parents_are_synced_before_put_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = Trace(monkeypatch, tmp_path / "tier")
    directory = Directory(tmp_path / "tier")
    assert trace.calls[:4] == [("mkdir", "tier"), ("fsync", "."), ("mkdir", "tier/.new"), ("fsync", "tier")]
    trace.calls.clear()
    await directory.put("a/b/1.segment", PARTS)
    calls = [call for call in trace.calls if call[0] != "mkdir"]
    parents = [("fsync", "tier/a/b"), ("fsync", "tier/a"), ("fsync", "tier")]
    assert calls == [("fsync", "new file"), ("link", "tier/a/b/1.segment"), *parents, ("unlink", "new file")]
    assert {call for call in trace.calls if call[0] == "mkdir"} == {("mkdir", "tier/a"), ("mkdir", "tier/a/b")}
    # An earlier try may have died between the link and the syncs. So a repeated put makes them all.
    trace.calls.clear()
    await directory.put("a/b/1.segment", PARTS)
    assert trace.calls[-4:] == [("fsync", "tier/a/b/1.segment"), *parents]
    assert os.listdir(tmp_path / "tier" / ".new") == []


@pytest.mark.parametrize("failing", ["fsync", "link", "open"])
async def test_put_that_fails_leaves_no_object_that_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    directory = Directory(tmp_path / "tier")

    def fail(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        if failing == "open":
            patch.setattr(Path, "open", fail)
        else:
            patch.setattr(os, failing, fail)
        with pytest.raises(TierAway, match=r"/1\.segment: No space left on device$"):
            await directory.put("a/1.segment", PARTS)
        with pytest.raises(ObjectMissing):
            await directory.read("a/1.segment", 0, 1)
    assert os.listdir(tmp_path / "tier" / ".new") == []
    await directory.put("a/1.segment", PARTS)


async def test_directory_that_is_not_mounted_is_away_and_has_no_missing_objects(tmp_path: Path) -> None:
    directory = Directory(tmp_path / "tier")
    await directory.put("a/1.segment", PARTS)
    (tmp_path / "tier").rename(tmp_path / "unmounted")
    (tmp_path / "tier").mkdir()
    for _ in range(2):
        with pytest.raises(TierAway, match="not mounted"):
            await directory.read("a/1.segment", 0, 1)
        with pytest.raises(TierAway, match="not mounted"):
            await directory.put("a/2.segment", PARTS)
        # What seems to be empty or deleted may come back.
        for call in (directory.owner, directory.names, directory.delete):
            with pytest.raises(TierAway):
                await call("a")
        with pytest.raises(TierAway):
            await directory.beginning("a", "1")
    assert os.listdir(tmp_path / "tier") == []


async def test_folders_of_a_deleted_topic_go_and_no_others(tmp_path: Path) -> None:
    directory, ns = Directory(tmp_path / "tier"), tmp_path / "tier" / "ns"
    for path in ("ns/a/id/0/1.segment", "ns/b/id/0/1.segment", "ns/b/other/0/1.segment"):
        await directory.put(path, PARTS)
    for topic in ("a", "b"):
        await directory.delete(f"ns/{topic}/id/0/1.segment")
        await directory.remove_folder(f"ns/{topic}/id")
    await directory.remove_folder("ns/b/other")
    assert sorted(str(one.relative_to(ns)) for one in ns.rglob("*")) == [
        "b", "b/other", "b/other/0", "b/other/0/1.segment",
    ]  # fmt: skip


async def test_directory_that_cannot_be_made_is_refused_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))

    monkeypatch.setattr(Path, "mkdir", fail)
    with pytest.raises(TierAway, match="/tier cannot be made"):
        Directory(tmp_path / "tier")


async def test_file_in_place_of_the_directory_is_refused_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "tier").touch()
    with pytest.raises(TierAway, match=r"/tier/: Not a directory$"):
        Directory(tmp_path / "tier")


async def test_directory_without_hard_links_is_refused_when_it_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", fail)
    with pytest.raises(TierAway, match=r"/tier: its file system makes no hard links \(Operation not permitted\)"):
        Directory(tmp_path / "tier")
    assert os.listdir(tmp_path / "tier" / ".new") == []


async def test_files_of_puts_that_died_are_removed_after_a_day(tmp_path: Path) -> None:
    Directory(tmp_path / "tier")
    for name in ("old", "young"):
        (tmp_path / "tier" / ".new" / name).touch()
    os.utime(tmp_path / "tier" / ".new" / "old", (0, 0))
    Directory(tmp_path / "tier")
    assert os.listdir(tmp_path / "tier" / ".new") == ["young"]


async def test_tier_is_opened_by_its_url_or_directory(tmp_path: Path) -> None:
    opened = open_objects(str(tmp_path / "tier")), open_objects(f"file://{tmp_path}/tier")
    assert [type(one) for one in opened] == [Directory, Directory]
    await opened[0].put("a/1.segment", PARTS)
    assert bytes(await opened[1].read("a/1.segment", 0, 7)) == b"batches"
    assert open_objects("s3://bucket/prefix/").name == "s3://bucket/prefix"
    with pytest.raises(TierAway, match="nonsense://bucket") as refused:
        open_objects("nonsense://user:secret@secret@bucket?sig=secret")
    assert "secret" not in str(refused.value)
    assert open_objects("s3://user:secret@bucket/prefix/?sig=secret").name == "s3://bucket/prefix"
    (tmp_path / "file").touch()
    with pytest.raises(TierAway):
        open_objects(str(tmp_path / "file"))


class Killed(BaseException):
    """The process is gone: nothing of it runs any more."""


@pytest.mark.parametrize("survived", range(9))
async def test_put_that_dies_between_two_calls_may_be_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, survived: int
) -> None:
    """At no time is there a part of an object."""
    directory = Directory(tmp_path / "tier")
    calls = 0

    def dying(call: Any) -> Any:
        def made(*arguments: Any, **options: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls > survived:
                raise Killed
            return call(*arguments, **options)

        return made

    with monkeypatch.context() as patch:
        for name in ("mkdir", "link", "fsync", "unlink"):
            patch.setattr(os, name, dying(getattr(os, name)))
        with pytest.raises(Killed):
            await directory.put("a/b/1.segment", PARTS)
    path = tmp_path / "tier" / "a" / "b" / "1.segment"
    assert not path.exists() or path.read_bytes() == b"batchesfooter"
    again = Directory(tmp_path / "tier")
    await again.put("a/b/1.segment", PARTS)
    assert bytes(await again.read("a/b/1.segment", 0, 100)) == b"batchesfooter"
