"""Blocks and footers of segments on a disk, beside the memory: ``--tier-cache``.

All processes that name one directory share it. Nothing there is trusted: who reads a file checks it by the checksum
that the segment's footer or the manifest has, and drops it if it is wrong. So a file needs no fsync, and a process may
die at any moment. The least recently used files go, by their times of modification, which a read renews.

A full, slow or failing disk is no reader's error: the store answers, and the disk is left alone for a while.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from threading import BoundedSemaphore
from typing import Final
from uuid import uuid4

import anyio
import structlog

from korvet.errors import ConfigError
from korvet.rate_limited_log import RateLimitedLog
from korvet.store.threads import FairThreads

log = structlog.get_logger()

_READERS: Final = 4
_MOST_WAITING: Final = 32
"""The files that wait to be written; further ones are left out."""
_READ_WITHIN_S: Final = 1.0
_REST_S: Final = 60.0
_MOST_FILE_BYTES: Final = 2 << 20
"""A footer's most bytes, and so a file's."""
_NEW: Final = "new-"
_OWN: Final = re.compile(f"{_NEW}[0-9a-f]{{32}}|[0-9a-f]{{40}}")
"""The names of the cache's files."""
_ABANDONED_S: Final = 3600.0


class Disk:
    """The files of one directory.

    :param most_bytes: of all files. Several processes may exceed it by a sixteenth each.
    :raises ConfigError: the directory cannot be made or written.
    """

    def __init__(self, root: Path, most_bytes: int) -> None:
        self.hits = 0
        self._root = root.absolute()
        self._most_bytes = most_bytes
        self._readers = FairThreads(_READERS, _READERS)
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="korvet")
        self._waiting = BoundedSemaphore(_MOST_WAITING)
        self._rests_until = 0.0
        self._unseen_bytes = most_bytes
        """The bytes written since the directory was looked at; at first it is looked at soon."""
        self._lines = RateLimitedLog()
        try:
            self._root.mkdir(parents=True, exist_ok=True)
            trial = self._root / f"{_NEW}{uuid4().hex}"
            trial.touch()
            trial.unlink()
        except OSError as error:
            raise ConfigError(f"--tier-cache {root}: {error.strerror}") from None

    async def read(self, names: Sequence[str]) -> Mapping[str, bytes]:
        """Those files that are there."""
        if time.monotonic() < self._rests_until:
            return {}
        try:
            with anyio.fail_after(_READ_WITHIN_S):
                found = await self._readers.run("", lambda: self._read(names), is_abandoned_on_cancel=True)
        except (OSError, TimeoutError) as error:
            self._rest(error)
            return {}
        self.hits += len(found)
        return found

    def add(self, name: str, data: bytes) -> None:
        """Write a file at some time, or never."""
        if time.monotonic() >= self._rests_until and self._waiting.acquire(blocking=False):
            self._writer.submit(self._write, name, data)

    def drop(self, name: str) -> None:
        """Remove a file whose bytes are wrong."""
        self._writer.submit(self._remove, self._path(name))

    def close(self) -> None:
        """Write nothing any more."""
        self._writer.shutdown(wait=False, cancel_futures=True)

    def _path(self, name: str) -> Path:
        digest = sha256(name.encode()).hexdigest()[:40]
        return self._root / digest[:2] / digest

    def _read(self, names: Sequence[str]) -> dict[str, bytes]:
        found: dict[str, bytes] = {}
        for name in names:
            path = self._path(name)
            with suppress(FileNotFoundError), path.open("rb") as file:
                found[name] = file.read(_MOST_FILE_BYTES)
                os.utime(path)
        return found

    def _write(self, name: str, data: bytes) -> None:
        new = self._root / f"{_NEW}{uuid4().hex}"
        try:
            path = self._path(name)
            path.parent.mkdir(exist_ok=True)
            new.write_bytes(data)
            new.replace(path)
            self._unseen_bytes += len(data)
            if self._unseen_bytes > self._most_bytes // 16:
                self._make_room()
        except OSError as error:
            self._remove(new)
            self._rest(error)
        finally:
            self._waiting.release()

    def _make_room(self) -> None:
        files: list[tuple[float, int, str]] = []
        for directory in (self._root, *(one for one in self._root.iterdir() if one.is_dir() and len(one.name) == 2)):
            with os.scandir(directory) as entries:
                for entry in entries:
                    # Others' files may lie there, and the oldest ones go.
                    if not _OWN.fullmatch(entry.name):
                        continue
                    with suppress(FileNotFoundError):
                        found = entry.stat()
                        if not entry.name.startswith(_NEW):
                            files.append((found.st_mtime, found.st_size, entry.path))
                        elif found.st_mtime < time.time() - _ABANDONED_S:
                            os.unlink(entry.path)
        total_bytes = sum(size for _, size, _ in files)
        for _, size, path in sorted(files):
            # A sixteenth is written before the next look.
            if total_bytes <= self._most_bytes - self._most_bytes // 16:
                break
            with suppress(FileNotFoundError):
                os.unlink(path)
            total_bytes -= size
        self._unseen_bytes = 0

    def _remove(self, path: Path) -> None:
        with suppress(OSError):
            path.unlink(missing_ok=True)

    def _rest(self, error: BaseException) -> None:
        self._rests_until = time.monotonic() + _REST_S
        reason = (error.strerror if isinstance(error, OSError) else None) or "it takes too long"
        self._lines.write(
            "warning", "the tier's cache on the disk is left alone for a minute", tier_cache=str(self._root),
            reason=reason,
        )  # fmt: skip
