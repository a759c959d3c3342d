"""This process's file descriptors and memory, and the return of freed memory to the system.

glibc keeps freed memory for later, a whole peak of it: its threshold for large blocks rises as they are freed.
malloc_trim gives all free pages back. It takes a millisecond for some 12 MiB, and other threads' malloc may wait
meanwhile. So korvet calls it only after a peak. A fixed threshold (M_MMAP_THRESHOLD) would give large blocks back at
once, but each batch of a megabyte would pay for fresh pages. With another libc, korvet does nothing.
"""

from __future__ import annotations

import ctypes
import os
import resource
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import anyio
import anyio.to_thread

_RESERVED_DESCRIPTORS = 128
"""Descriptors kept for links to Redis, listening sockets, the embedded server and libraries."""
_MOST_DESCRIPTORS = 1 << 20
_STATM = Path("/proc/self/statm")
_LOOK_S = 1.0
_LEAST_FREED_BYTES = 64 << 20


def memory_bytes() -> int:
    """The bytes of the machine's memory, or of the control group's if that is less."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with suppress(OSError, ValueError):
        total = min(total, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    return total


def raise_descriptor_limit() -> None:
    """Raise the limit of file descriptors as far as the system allows without further rights."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _MOST_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def most_connections() -> int:
    """The number of connections that the file descriptors allow."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MOST_DESCRIPTORS if soft == resource.RLIM_INFINITY else max(1, soft - _RESERVED_DESCRIPTORS)


class FreedMemory:
    """Freed memory that the process still holds: more than 64 MiB at two looks, beyond the least ever seen.

    :param resident: the process's resident bytes.
    :param in_use: the resident bytes that the process can account for.
    """

    def __init__(self, resident: Callable[[], int], in_use: Callable[[], int]) -> None:
        self._resident = resident
        self._in_use = in_use
        self._floor_bytes = self._unaccounted()
        self._was_much = False

    def _unaccounted(self) -> int:
        return max(0, self._resident() - self._in_use())

    def is_due(self) -> bool:
        """Look once; true if it is time to give memory back. The caller then calls `given_back`."""
        unaccounted = self._unaccounted()
        self._floor_bytes = min(self._floor_bytes, unaccounted)
        is_much = unaccounted - self._floor_bytes > _LEAST_FREED_BYTES
        is_due, self._was_much = is_much and self._was_much, is_much
        return is_due

    def given_back(self) -> None:
        """Take the memory that is resident now as the new baseline."""
        self._floor_bytes, self._was_much = self._unaccounted(), False


async def give_back_freed(in_use: Callable[[], int], stop: anyio.Event) -> None:
    """Give freed memory back until ``stop`` is set; return at once if this libc cannot."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is None or not _STATM.exists():  # noqa: ASYNC240 - once
        return
    freed = FreedMemory(resident_bytes, in_use)
    while not stop.is_set():
        with anyio.move_on_after(_LOOK_S):
            await stop.wait()
        if freed.is_due():
            await anyio.to_thread.run_sync(trim, 0)
            freed.given_back()


def resident_bytes() -> int:
    """The resident bytes of this process; 0 if the system does not report them."""
    try:
        return int(_STATM.read_text().split()[1]) * resource.getpagesize()
    except OSError:
        return 0
