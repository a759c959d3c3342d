"""Objects of the tier: in a bucket through obstore, or in a directory. Nothing is ever replaced.

`Objects.put` is durable when it returns, and anyone may repeat it: an object that is there with the same bytes is a
success. obstore's own local store may lose what it wrote if the power fails. So `Directory` writes files itself: the
content, fsync, a link to the final name, which never replaces a file, and fsync of each directory on the way. Nothing
may refer to an object before `put` returned.

obstore retries nothing here. Readers have `korvet.tier.blocks`; who puts or deletes tries again in its next round.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import time
from collections.abc import Awaitable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar
from uuid import uuid4

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, GenericError
from obstore.store import LocalStore, from_url

from korvet.errors import KorvetError
from korvet.store.threads import FairThreads
from korvet.tier.manifest import in_path

if TYPE_CHECKING:
    from obstore.store import ObjectStore

Bytes = bytes | memoryview
T = TypeVar("T")
_PATH: Final = re.compile(r"(?!\.)[A-Za-z0-9._=-]+(/(?!\.)[A-Za-z0-9._=-]+)*")
_NO_BUCKET: Final = re.compile("NoSuchBucket|ContainerNotFound|bucket does not exist")
_CODE: Final = re.compile(r"<Code>(\w+)</Code>")
_LEFT_OUT: Final = re.compile(r"(?<=//)[^/\s]*@|\?\S*| in [\d.]+[mµn]?s(?= - )")
"""In a URL the user, and the query. How long a request took, so that an error that comes again has the same text."""
_NEW: Final = ".new"
_ABANDONED_S: Final = 86400.0
_WRITERS: Final = 4
_WRITERS_OF_ONE: Final = 2
_OWNER_BYTES: Final = 4096
_LISTED: Final = 1000
_PUT_WITHIN: Final = timedelta(minutes=5)
"""The most time of a request. Readers have a shorter deadline (`korvet.tier.blocks`)."""
_CONNECT_WITHIN: Final = timedelta(seconds=5)


class TierAway(KorvetError):
    """The store cannot be reached, refuses, or is full. Whether it did the work is unknown."""


class OtherTier(TierAway):
    """The store is not the one that holds the namespace's topics, or it was emptied."""


class ObjectMissing(KorvetError):
    """There is no such object."""


class ObjectExists(KorvetError):
    """An object with other bytes has the name."""


class Owner(NamedTuple):
    """The Redis that may write a namespace's objects: its cluster id, and a token of its run; see
    `korvet.tier.ownership`."""

    cluster_id: str
    incarnation: str
    generation: int
    """How often the namespace got an owner, this one included."""


class Challenge(NamedTuple):
    """The last challenge of a namespace's owner, at a time of `korvet.tier.ownership.clock`, and how many earlier ones
    were answered."""

    owner: Owner
    at: float
    answers: int


class Objects:
    """The objects below a prefix of a bucket.

    :param name: the bucket and prefix, for messages.
    """

    def __init__(self, store: ObjectStore, name: str) -> None:
        self._store = store
        self.name = name
        self._trial = f"trial-{uuid4().hex}"

    async def put(self, path: str, parts: Sequence[Bytes]) -> None:
        """Add an object. The last part must depend on all bytes before it, as a segment's footer does.

        :raises ObjectExists: the name has other bytes.
        :raises TierAway: it may have been added nevertheless.
        """
        _check_path(path)
        try:
            await self._create(path, parts)
        except (AlreadyExistsError, FileExistsError):
            if not await self._has(path, parts):
                raise ObjectExists(f"{self.name}/{path} exists with other bytes") from None
            await self._settle(path)

    async def read(self, path: str, start: int, end: int) -> memoryview:
        """A range of an object; fewer bytes if the object ends before.

        :raises ObjectMissing:
        :raises TierAway:
        """
        with self._named(path):
            try:
                return memoryview(await obstore.get_range_async(self._store, path, start=start, end=end))
            except GenericError:
                # Among others, the range begins after the object's end.
                if (await obstore.head_async(self._store, path))["size"] > start:
                    raise
                return memoryview(b"")

    async def delete(self, path: str) -> None:
        """Delete an object, if it is there.

        :raises TierAway:
        """
        _check_path(path)
        with suppress(ObjectMissing), self._named(path):
            await obstore.delete_async(self._store, path)

    async def remove_folder(self, folder: str) -> None:
        """Remove what is left of a folder after its last object was deleted. A bucket has none."""

    async def try_out(self) -> None:
        """Put, read and delete an object, before anything relies on it.

        :raises TierAway: the store refuses something, or would replace objects. Some stores of S3's kind ignore the
            condition of a PUT.
        """
        path = self._trial
        try:
            await self.put(path, [b"1"])
            try:
                await self._create(path, [b"2"])
            except (AlreadyExistsError, FileExistsError):
                pass
            else:
                raise TierAway(f"{self.name} replaces objects: it does not know the condition If-None-Match of a PUT")
            if bytes(await self.read(path, 0, 2)) != b"1":
                raise TierAway(f"{self.name}/{path} has other bytes than were put")
        finally:
            await self.delete(path)

    async def names(self, folder: str) -> Sequence[str]:
        """Some paths of objects below a folder, not all of them. What a listing lacks may be there nevertheless.

        :raises TierAway:
        """
        _check_path(folder)
        with self._named(folder):
            async for some in obstore.list(self._store, prefix=folder, chunk_size=_LISTED):
                return [one["path"] for one in some]
        return ()

    async def beginning(self, folder: str, begin: str) -> Sequence[tuple[str, int]]:
        """The objects in a folder whose names begin so, by their paths and sizes, as far as a listing has them.

        :raises TierAway:
        """
        _check_path(folder)
        found: list[tuple[str, int]] = []
        start = f"{folder}/{begin}"
        with self._named(folder):
            async for some in obstore.list(self._store, prefix=folder, offset=start, chunk_size=_LISTED):
                found += [(one["path"], one["size"]) for one in some if one["path"].startswith(start)]
        return found

    async def owner(self, namespace: str, known: Owner | None = None) -> Owner | None:
        """The owner of a namespace's objects; None if they never had one.

        Generations have no gaps, so it takes some 2 log2(n) reads: a copy that runs beside a Redis makes thousands a
        day.

        :param known: a former one, or the present one, which saves reads.
        :raises TierAway:
        """
        found, step, grows = known, 1, True
        while step:
            generation = (found.generation if found else 0) + step
            try:
                data = await self.read(owner_path(namespace, generation), 0, _OWNER_BYTES)
                found = _owner_of(data, namespace, generation)
            except ObjectMissing:
                grows = False
            step = 2 * step if grows else step // 2
        return found

    async def identity(self, namespace: str) -> str:
        """The id that the first owner gave the namespace's tier here; empty if there never was one.

        :raises TierAway:
        """
        path = owner_path(namespace, 1)
        with suppress(ObjectMissing):
            return _fields_of(await self.read(path, 0, _OWNER_BYTES), path, "tier")["tier"]
        return ""

    async def claim(
        self, namespace: str, cluster_id: str, incarnation: str, former: Owner | None, tier: str = ""
    ) -> Owner:
        """Make a Redis the owner after the former one. Returns the owner: another one, if that was faster.

        :param tier: the id that the first owner gives the tier; by default a new one.
        :raises TierAway: unknown who the owner is.
        """
        owner = Owner(cluster_id, incarnation, former.generation + 1 if former else 1)
        fields = {"cluster_id": cluster_id, "incarnation": incarnation}
        if former is None:
            fields["tier"] = tier or uuid4().hex
        with suppress(ObjectExists):
            await self.put(owner_path(namespace, owner.generation), [json.dumps(fields).encode()])
        found = await self.owner(namespace, former)
        assert found is not None
        return found

    async def _create(self, path: str, parts: Sequence[Bytes]) -> None:
        with self._named(path):
            await obstore.put_async(self._store, path, list(parts), mode="create", use_multipart=False)

    async def _settle(self, path: str) -> None:
        """Make an object durable that an earlier try put."""

    async def _has(self, path: str, parts: Sequence[Bytes]) -> bool:
        """True if an object has the size of the parts, and ends with the last one."""
        size = sum(map(len, parts))
        return await self.read(path, size - len(parts[-1]), size + 1) == parts[-1]

    @contextmanager
    def _named(self, path: str) -> Iterator[None]:
        """Errors as this module has them, of one line each."""
        try:
            yield
        except FileNotFoundError as error:
            if _NO_BUCKET.search(str(error)):
                # obstore has the same error for both, but here every object would seem to be missing, and no owner.
                raise TierAway(f"{self.name}: there is no such bucket") from None
            raise ObjectMissing(f"{self.name}/{path} does not exist") from None
        except (AlreadyExistsError, FileExistsError):
            raise
        except (BaseError, OSError) as error:
            raise TierAway(f"{self.name}/{path}: {in_one_line(error)}") from None


class Directory(Objects):
    """The objects below a directory.

    :param is_read_only: it must be there, and nothing is written.
    :raises TierAway: it cannot be made or written, or its file system has no hard links.
    """

    def __init__(self, root: Path, *, is_read_only: bool = False) -> None:
        self._root = root.absolute()
        self.name = str(self._root)
        self._threads = FairThreads(_WRITERS, _WRITERS_OF_ONE)
        with self._named(""):
            if is_read_only and not (self._root / _NEW).exists():
                raise TierAway(f"{self.name} is not the directory of a tier, or its file system is not mounted here")
            if not is_read_only:
                self._prepare()
            super().__init__(LocalStore(self._root), self.name)

    def _prepare(self) -> None:
        try:
            _make_durable(self._root / _NEW)
        except FileNotFoundError:
            # /proc has this error for new directories.
            raise TierAway(f"{self.name} cannot be made: its file system takes no new directories there") from None
        for path in (self._root / _NEW).iterdir():
            if path.stat().st_mtime < time.time() - _ABANDONED_S:
                path.unlink(missing_ok=True)
        _try_out(self._root / _NEW)

    async def read(self, path: str, start: int, end: int) -> memoryview:
        try:
            return await super().read(path, start, end)
        except ObjectMissing:
            await self._check_mounted()
            raise

    async def delete(self, path: str) -> None:
        await self._if_mounted(super().delete(path))

    async def names(self, folder: str) -> Sequence[str]:
        return await self._if_mounted(super().names(folder))

    async def beginning(self, folder: str, begin: str) -> Sequence[tuple[str, int]]:
        return await self._if_mounted(super().beginning(folder, begin))

    async def _if_mounted(self, found: Awaitable[T]) -> T:
        result = await found
        await self._check_mounted()
        return result

    async def _check_mounted(self) -> None:
        """Every object is missing while the directory's file system is not mounted."""
        if not await self._threads.run("", (self._root / _NEW).exists, is_abandoned_on_cancel=True):
            raise TierAway(self._gone())

    async def remove_folder(self, folder: str) -> None:
        def remove() -> None:
            for path, _, _ in os.walk(self._root / folder, topdown=False):
                with suppress(OSError):
                    os.rmdir(path)
            with suppress(OSError):
                # Of a topic, whose name may have had several ids.
                (self._root / folder).parent.rmdir()

        _check_path(folder)
        await self._threads.run("", remove, is_abandoned_on_cancel=True)

    def _gone(self) -> str:
        return f"{self.name} is not the directory that was opened: it was removed, or its file system is not mounted"

    async def _create(self, path: str, parts: Sequence[Bytes]) -> None:
        with self._named(path):
            try:
                await self._in_thread(path, self._write, parts)
            except FileNotFoundError:
                raise TierAway(self._gone()) from None

    async def _settle(self, path: str) -> None:
        with self._named(path):
            await self._in_thread(path, self._sync, None)

    def _in_thread(self, path: str, work: Any, parts: Sequence[Bytes] | None) -> Awaitable[None]:
        # A cancelled caller does not wait for a disk that hangs. The thread may end the work later: nothing refers to
        # the object then.
        target, owner = self._root / path, path.partition("/")[0]
        return self._threads.run(owner, lambda: work(target, parts), is_abandoned_on_cancel=True)

    def _write(self, target: Path, parts: Sequence[Bytes]) -> None:
        new = self._root / _NEW / uuid4().hex
        try:
            with new.open("xb") as file:
                file.writelines(parts)
                file.flush()
                _sync(file.fileno())
            target.parent.mkdir(parents=True, exist_ok=True)
            os.link(new, target)
            self._sync_parents(target)
        finally:
            new.unlink(missing_ok=True)

    def _sync(self, target: Path, _: None) -> None:
        _sync_path(target)
        self._sync_parents(target)

    def _sync_parents(self, target: Path) -> None:
        # All, and not only new ones: another process may have made one a moment ago and not yet synced it.
        for parent in target.parents:
            _sync_path(parent)
            if parent == self._root:
                return


def open_objects(where: str, *, is_read_only: bool = False) -> Objects:
    """The tier in a directory, or in a bucket by its URL (``s3://bucket/prefix``), with the environment's credentials.

    Open it in the process that uses it: the threads of obstore do not come along into a fork, whose reads would hang.

    :raises TierAway: a directory that cannot be used, or a URL that obstore does not take.
    """
    if "://" not in where:
        return Directory(Path(where), is_read_only=is_read_only)
    if where.startswith("file://"):
        return Directory(Path(where.removeprefix("file://")), is_read_only=is_read_only)
    return Objects(open_store(where), _LEFT_OUT.sub("", where).rstrip("/"))


def open_store(url: str, *, retries: int = 0) -> ObjectStore:
    """obstore's store of a bucket and prefix, with the environment's credentials.

    :param retries: how often obstore tries a request again.
    :raises TierAway: a URL that obstore does not take.
    """
    try:
        return from_url(
            url,
            client_options={
                "timeout": _PUT_WITHIN,
                "connect_timeout": _CONNECT_WITHIN,
                # obstore does not look for this one any more if there are options.
                "allow_http": os.environ.get("AWS_ALLOW_HTTP", "").lower() in ("1", "true", "yes", "on"),
            },
            retry_config={"max_retries": retries},
        )
    except (BaseError, ValueError) as error:
        raise TierAway(f"{_LEFT_OUT.sub('', url)}: {in_one_line(error)}") from None


def in_one_line(error: BaseException) -> str:
    """What an error says: the code of a store's answer instead of its XML, and no part of a URL that may be secret."""
    text = (isinstance(error, OSError) and error.strerror) or str(error)
    code = _CODE.search(text)
    line = text.splitlines()[0].partition(": <")[0] if text else type(error).__name__
    return _LEFT_OUT.sub("", line) + (f": {code[1]}" if code else "")


def _check_path(path: str) -> None:
    if not _PATH.fullmatch(path):
        raise ValueError(f"{path!r} is no path of an object")


def owner_path(namespace: str, generation: int) -> str:
    """The object that names a namespace's owner. A topic called `owner` has only folders there."""
    return f"{in_path(namespace)}/owner/{generation:020d}.json"


def _owner_of(data: memoryview, namespace: str, generation: int) -> Owner:
    fields = _fields_of(data, owner_path(namespace, generation), "cluster_id", "incarnation")
    return Owner(fields["cluster_id"], fields["incarnation"], generation)


def _fields_of(data: memoryview, path: str, *names: str) -> dict[str, str]:
    try:
        fields = json.loads(bytes(data))
        return {name: str(fields[name]) for name in names}
    except (ValueError, KeyError, TypeError):
        raise TierAway(f"{path} does not name an owner") from None


def _make_durable(directory: Path) -> None:
    """Make a directory and its parents, and sync the parents of new ones."""
    missing = [one for one in (directory, *directory.parents) if not one.exists()]
    for one in reversed(missing):
        one.mkdir(exist_ok=True)
        _sync_path(one.parent)


def _try_out(directory: Path) -> None:
    """Make a file and a link to it, so that a directory without them is refused before the first segment."""
    file, link = (directory / f"{uuid4().hex}-{name}" for name in ("file", "link"))
    try:
        file.touch(exist_ok=False)
        try:
            os.link(file, link)
        except OSError as error:
            raise TierAway(f"{directory.parent}: its file system makes no hard links ({error.strerror})") from None
    finally:
        file.unlink(missing_ok=True)
        link.unlink(missing_ok=True)


def _sync_path(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        _sync(descriptor)
    finally:
        os.close(descriptor)


def _sync(descriptor: int) -> None:
    if hasattr(fcntl, "F_FULLFSYNC"):
        # macOS's fsync leaves the bytes in the drive's cache.
        fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
    else:
        os.fsync(descriptor)
