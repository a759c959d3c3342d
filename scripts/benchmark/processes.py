"""Processor time and memory of processes and of all below them."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

import psutil

CLIENT: Final = "client"
ROLES: Final = {"java": "Kafka", "valkey-server": "Redis", "redis-server": "Redis"}
OTHER_ROLE: Final = "front-end"


class ProcessorTime(NamedTuple):
    """Seconds of processor time, of all threads together."""

    user_s: float
    kernel_s: float

    @property
    def total_s(self) -> float:
        return self.user_s + self.kernel_s

    def plus(self, other: "ProcessorTime", factor: float = 1.0) -> "ProcessorTime":
        """The sum with another time, which counts ``factor`` times."""
        return ProcessorTime(self.user_s + factor * other.user_s, self.kernel_s + factor * other.kernel_s)


NONE: Final = ProcessorTime(0.0, 0.0)


def _all(pids: Sequence[int]) -> Iterator[psutil.Process]:
    for pid in pids:
        process = psutil.Process(pid)
        yield process
        yield from process.children(recursive=True)


def resident_mb(pids: Sequence[int]) -> float:
    """Resident memory in 10^6 bytes."""
    return _mb(pids, lambda process: process.memory_info().rss)


def proportional_mb(pids: Sequence[int]) -> float:
    """The proportional set size in 10^6 bytes: what processes share counts to each of them in part. Linux alone."""
    return _mb(pids, lambda process: process.memory_full_info().pss)


def _mb(pids: Sequence[int], memory: Callable[[psutil.Process], int]) -> float:
    total = 0
    for process in _all(pids):
        with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            if not _has_memory_of_java(process):
                total += memory(process)
    return total / 1e6


def _has_memory_of_java(process: psutil.Process) -> bool:
    """True if Java has just made the process. Until that begins its own program, it shares all of Java's memory."""
    if Path(process.exe()).name != "java":
        return False
    parent = process.parent()
    return parent is not None and process.cmdline() == parent.cmdline()


def pids_by_role(pids: Sequence[int]) -> dict[str, list[int]]:
    """The processes by role."""
    found: dict[str, list[int]] = defaultdict(list)
    for process in _all(pids):
        try:
            found[ROLES.get(process.name(), OTHER_ROLE)].append(process.pid)
        except psutil.NoSuchProcess:
            continue
    return dict(found)


def processor_times(pids: Sequence[int]) -> dict[str, ProcessorTime]:
    """Processor time since the start, by role. A child that has ended counts to its parent's."""
    times: dict[str, ProcessorTime] = defaultdict(lambda: NONE)
    for process in _all(pids):
        try:
            role, used = ROLES.get(process.name(), OTHER_ROLE), process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        own = ProcessorTime(used.user + used.children_user, used.system + used.children_system)
        times[role] = times[role].plus(own)
    return dict(times)


def spent(before: Mapping[str, ProcessorTime], after: Mapping[str, ProcessorTime]) -> dict[str, ProcessorTime]:
    """Processor time between two readings, by role."""
    return {role: time.plus(before.get(role, NONE), -1.0) for role, time in after.items()}
