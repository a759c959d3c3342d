"""Rewrites of the embedded server's append-only file, once half of the file is obsolete.

Valkey's own rule rewrites a file that has doubled. A log that only grows has nothing to drop, yet a child process
copies all of it while clients write, and each page that changes meanwhile is copied, too. After a deletion the rule
keeps the old data until new data has doubled the file. This rule compares the file with the data in memory instead.

At the end of a rewrite Valkey unlinks the old files and closes them in a thread. Meanwhile its main thread syncs the
manifest and its directory. On ext4 mounted with discard these syncs wait until the files are freed. So korvet keeps
the files open until the rewrite has ended, and frees them itself.

Valkey starts with a file whose end is missing, because a crash may cut the last command. It does not know how much is
missing. So korvet stores the size of the newest file at each look, and warns at the next start if the file is shorter.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import anyio
import structlog
from anyio import to_thread

log = structlog.get_logger()

SendCommand = Callable[[bytes, float], Awaitable[bytes]]
"""Runs an inline command within so many seconds; returns an empty reply if none comes."""

DIRECTORY = "appendonlydir"
_LEAST_BYTES = 1 << 30
_LOOK_S = 10.0
_LONGEST_S = 3600.0
_POLL_S = 0.5
"""The pause between two looks at a rewrite that runs."""
_ANSWER_S = 5.0
_NOTE = "korvet.size"
"""A file next to the append-only files' directory: the name of the newest one, and its size."""


def is_due(info: Mapping[str, str], least_bytes: int = _LEAST_BYTES) -> bool:
    """True if the file is larger than ``least_bytes`` and than twice the data, and no rewrite runs or waits.

    :param info: the sections "memory" and "persistence" of INFO; a missing field, as during loading, means false.
    """
    if _states(info) != {"0"}:
        return False
    try:
        file_bytes, data_bytes = int(info["aof_current_size"]), int(info["used_memory_dataset"])
    except (KeyError, ValueError):
        return False
    return file_bytes > max(least_bytes, 2 * data_bytes)


async def rewrite_when_due(
    send_command: SendCommand, directory: Path, least_bytes: int = _LEAST_BYTES, look_s: float = _LOOK_S
) -> None:
    """Look every few seconds until cancelled. After a rewrite that failed, twice as long, up to an hour.

    :param directory: the directory of the append-only files.
    """
    pause_s = look_s
    while True:
        await anyio.sleep(pause_s)
        await to_thread.run_sync(note_size, directory)
        info = _fields(await send_command(b"INFO memory persistence", _ANSWER_S))
        has_failed = info.get("aof_last_bgrewrite_status") == "err"
        if not has_failed:
            pause_s = look_s
        if not is_due(info, least_bytes):
            continue
        if has_failed:
            pause_s = min(2 * pause_s, _LONGEST_S)
            log.warning(
                "the embedded valkey could not rewrite its append-only file, which grows; see its log, and whether its "
                "disk and memory have room",
                bytes=info["aof_current_size"], again_in_s=round(pause_s, 2),
            )  # fmt: skip
        async with _kept_open(directory):
            await send_command(b"BGREWRITEAOF", _ANSWER_S)
            while True:
                await anyio.sleep(_POLL_S)
                # A server that hangs or restarts does not reply for a time.
                if _states(_fields(await send_command(b"INFO persistence", _ANSWER_S))) == {"0"}:
                    break


def note_size(directory: Path) -> None:
    """Store the name and the size of the newest file. If the disk is full, the earlier note stays."""
    with suppress(OSError):
        newest, note = _newest(directory), directory.with_name(_NOTE)
        if newest is not None:
            text = f"{newest.name} {newest.stat().st_size}\n"
            if not note.exists() or note.read_text() != text:
                written = note.with_suffix(".new")
                written.write_text(text)
                written.replace(note)


def warn_of_missing_end(directory: Path) -> None:
    """Log an error if the newest file is shorter than noted: clients' last writes are lost."""
    with suppress(OSError, ValueError):
        name, text = directory.with_name(_NOTE).read_text().split()
        newest = _newest(directory)
        if newest is None or newest.name != name or (size_bytes := newest.stat().st_size) >= int(text):
            return
        log.error(
            "the end of the append-only file is missing, and with it what clients wrote last; if no crash of the "
            "machine explains that, restore a backup",
            file=str(newest), bytes=size_bytes, missing_bytes=int(text) - size_bytes,
        )  # fmt: skip


def _newest(directory: Path) -> Path | None:
    """The file that the server appends to, or appended to last."""
    found = [path for path in directory.iterdir() if path.name.endswith(".incr.aof")]
    return max(found, key=lambda path: (len(path.name), path.name), default=None)


@asynccontextmanager
async def _kept_open(directory: Path) -> AsyncIterator[None]:
    """Keep a directory's current files open, so that no unlinked one is freed until the block ends."""
    opened: list[int] = []
    try:
        await to_thread.run_sync(_open, directory, opened)
        yield
    finally:
        with anyio.CancelScope(shield=True):
            await to_thread.run_sync(_close, opened)


def _open(directory: Path, opened: list[int]) -> None:
    """Open a directory's files. A file that cannot be opened is left out, so the server itself frees it."""
    with suppress(OSError):
        for path in directory.iterdir():
            with suppress(OSError):
                opened.append(os.open(path, os.O_RDONLY | os.O_NONBLOCK))


def _close(opened: list[int]) -> None:
    """Close files. The last close of an unlinked file frees it, which takes longer for a larger file."""
    for file in opened:
        with suppress(OSError):
            os.close(file)


def _states(info: Mapping[str, str]) -> set[str | None]:
    """The two fields that say whether a rewrite runs, and whether one waits."""
    return {info.get(f"aof_rewrite_{state}") for state in ("in_progress", "scheduled")}


def _fields(answer: bytes) -> dict[str, str]:
    lines = answer.decode(errors="replace").splitlines()
    return {name: value for name, separator, value in (line.partition(":") for line in lines) if separator}
