"""Redis dies and loses its last writes: its append-only file ends at a random byte, as when the machine dies with it.

A cutter notes the file's size all the time. An answer is owed if a client got it while the file was no longer than the
cut leaves it; a later answer is not.
"""

import random
import threading
import time
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from scripts.chaosrun.journal import now_us
from tests.support.redis import Server

OPTIONS: Final = {"appendonly": "yes", "appendfsync": "no", "auto-aof-rewrite-percentage": "0"}
"""One file that Redis only appends to, without syncs; the cut decides which bytes are flushed."""
LOST_S: Final = 2.0
"""The most seconds that are lost, as by `appendfsync everysec` on a slow disk."""
SAMPLE_S: Final = 0.02
DELAY_US: Final = 1_000_000
"""A client may get an answer before the crash, and note it this much later than the restart."""


class Cutter:
    """The append-only file of a server, and the times with answers that are not owed."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._times: list[int] = []
        self._sizes: list[int] = []
        self._lock = threading.Lock()
        self.windows: list[tuple[int, int]] = []
        self.lost_bytes = 0

    @property
    def _file(self) -> Path:
        return max((self._server.directory / "appendonlydir").glob("*.incr.aof"))

    def note(self) -> None:
        """Note the file's length."""
        with self._lock:
            self._times.append(now_us())
            self._sizes.append(self._file.stat().st_size)

    def kill_and_cut(self, chance: random.Random, away_s: float) -> None:
        """Kill the server, cut its file within its last writes, and start it on the rest."""
        with self._lock:
            self._server.kill()
            end = self._file.stat().st_size
            first = bisect_right(self._times, now_us() - int(LOST_S * 1e6)) - 1
            kept = chance.randint(self._sizes[max(first, 0)], end) if self._sizes else end
            # The last time at which the file was no longer than the rest.
            at = bisect_right(self._sizes, kept) - 1
            whole = self._times[at] if at >= 0 else 0
            with self._file.open("r+b") as file:
                file.truncate(kept)
            time.sleep(away_s)
            self._server.start()
            self._times.clear()
            self._sizes.clear()
        self.lost_bytes += end - kept
        self.windows.append((whole, now_us() + DELAY_US))

    def is_owed(self, at_us: int) -> bool:
        """True if the effect of an answer of this time must be there."""
        return not any(first < at_us <= last for first, last in self.windows)


@contextmanager
def cutting(server: Server) -> Iterator[Cutter]:
    """A cutter that notes the file's size as long as the context lasts."""
    cutter, stopped = Cutter(server), threading.Event()

    def work() -> None:
        while not stopped.wait(SAMPLE_S):
            cutter.note()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield cutter
    finally:
        stopped.set()
        thread.join()
