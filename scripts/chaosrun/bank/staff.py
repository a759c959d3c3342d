"""The workers of the bank, each a process of its own, and their deaths and successors."""

import math
import random
import time
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from scripts.chaosrun.bank.books import ACCOUNTANT_COUNT, ACCOUNTANTS, CLERKS, PARTITIONS, TOPICS
from scripts.chaosrun.bank.producing import BEGIN_ANEW
from scripts.chaosrun.jobs import Job
from scripts.chaosrun.load import LoadError
from scripts.chaosrun.processes import Process, Program, command

SESSION_MS: Final = 6000
PER_S: Final = 20.0
AWAY_S: Final = 0.5
HUNG_S: Final = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Post:
    """A worker's name and program. `weight`: its chance to be the victim, compared with others."""

    name: str
    program: Program
    group: str = ""
    is_static: bool = False
    weight: float = 1.0


ORDERER: Final = Post(name="orderer", program="bank-orders", weight=0.0)
WORKERS: Final = (
    *(Post(name=f"teller-{number}", program="bank-teller") for number in range(2)),
    Post(name="clerk-0", program="bank-clerk", group=CLERKS, is_static=True),
    Post(name="clerk-1", program="bank-java", group=CLERKS, is_static=True, weight=0.5),
    # The group learns of its death by its session's end; while the others wait for that, no clerk carries out orders.
    Post(name="clerk-2", program="bank-clerk", group=CLERKS, weight=0.3),
    *(
        Post(name=f"accountant-{number}", program="bank-balances", group=ACCOUNTANTS, weight=0.7)
        for number in range(ACCOUNTANT_COUNT)
    ),
)


@dataclass(kw_only=True)
class Desk:
    """A post and its processes: the current one, else the time of the next one, and one that hung when that came."""

    post: Post
    process: Process | None = None
    due: float = 0.0
    hung: list[tuple[float, Process]] = field(default_factory=list)


class Staff:
    """All workers. Another process under the same name follows one that is killed or cannot go on."""

    def __init__(
        self, bootstrap: str, directory: Path, timeout_ms: int, chance: random.Random, workers: Sequence[Post]
    ) -> None:
        self._bootstrap, self._directory, self._timeout_ms = bootstrap, directory, timeout_ms
        self.chance = chance
        self._desks = [Desk(post=post) for post in (ORDERER, *workers)]
        self.workers = {post.name for post in workers}
        for post in workers:
            command(post.program)  # compiles Java before any worker waits for it
        self._incarnation = 0
        self.killed = self.hung = self.fenced = self.anew = 0

    def mind(self) -> None:
        """Start due processes, and let hung ones go on. Raises LoadError if one ended by itself."""
        now = time.monotonic()
        for desk in self._desks:
            if desk.process is not None and desk.process.exit_code is not None:
                self._take_leave(desk.process)
                desk.process, desk.due = None, now
                self.anew += 1
            if desk.process is None and now >= desk.due:
                desk.process = self._start(desk.post)
            self._mind_hung(desk, now)

    def _mind_hung(self, desk: Desk, now: float) -> None:
        for entry in list(desk.hung):
            until, process = entry
            if process.exit_code is not None:
                self._take_leave(process)
                desk.hung.remove(entry)
                self.fenced += 1
            elif now >= until + HUNG_S:
                process.kill()
                desk.hung.remove(entry)
            elif now >= until:
                process.go_on()

    def _take_leave(self, process: Process) -> None:
        """The message for a process that ended by itself."""
        process.kill()
        if process.exit_code != BEGIN_ANEW:
            raise LoadError(f"{process.names} ended with {process.exit_code}:\n{process.last_words()}")

    def _start(self, post: Post) -> Process:
        self._incarnation += 1
        path = self._directory / f"{self._incarnation}-{post.name}"
        job = Job(
            bootstrap=self._bootstrap, journal=f"{path}.jsonl", names=[post.name], topics=list(TOPICS),
            partitions=PARTITIONS, group=post.group, is_static=post.is_static, session_timeout_ms=SESSION_MS,
            records_per_s=PER_S, incarnation=self._incarnation, timeout_ms=self._timeout_ms,
        )  # fmt: skip
        return Process(post.program, job, Path(f"{path}.txt"))

    def _victim(self) -> Desk | None:
        present = [desk for desk in self._desks if desk.process is not None and desk.post.weight]
        return self.chance.choices(present, [desk.post.weight for desk in present])[0] if present else None

    def kill_one(self) -> None:
        """Plan the next process: mostly soon, now and then only after the timeout of the killed one's transaction."""
        desk = self._victim()
        if desk is not None and desk.process is not None:
            desk.process.kill()
            away_s = self._timeout_ms / 1000 + 1 if self.chance.random() < 0.1 else self.chance.uniform(0, AWAY_S)
            desk.process, desk.due = None, time.monotonic() + away_s
            self.killed += 1

    def hang_one(self) -> None:
        """Start another process at once; the hung one goes on some time later with its work."""
        desk = self._victim()
        if desk is not None and desk.process is not None:
            desk.process.pause()
            desk.hung.append((time.monotonic() + self.chance.uniform(0.5, HUNG_S), desk.process))
            desk.process = self._start(desk.post)
            self.hung += 1

    def shut(self) -> None:
        """Kill all workers but the producer of orders, and start none until `open`."""
        for desk in self._desks:
            if desk.post is not ORDERER:
                self._kill(desk)
                self.killed += 1

    def open(self) -> None:
        """Let all workers come again."""
        for desk in self._desks:
            desk.due = 0.0

    def _kill(self, desk: Desk) -> None:
        for process in (desk.process, *(process for _, process in desk.hung)):
            if process is not None:
                process.kill()
        desk.process, desk.due = None, math.inf
        desk.hung.clear()

    def leave(self, which: Callable[[Post], bool]) -> None:
        """Let some workers finish and go for good. Raises LoadError if one does not, in time or well."""
        leaving = [desk for desk in self._desks if which(desk.post)]
        self._desks = [desk for desk in self._desks if desk not in leaving]
        processes = [desk.process for desk in leaving if desk.process is not None]
        try:
            for process in processes:
                process.ask_to_leave()
            for process in processes:
                if process.await_end() not in (0, BEGIN_ANEW):
                    raise LoadError(f"{process.names} did not end well:\n{process.last_words()}")
        finally:
            for desk in leaving:
                self._kill(desk)

    def last_words(self, names: Set[str]) -> str:
        """The last output of the running processes of these names."""
        present = [desk.process for desk in self._desks if desk.post.name in names and desk.process is not None]
        return "\n".join(f"{process.names}: {process.last_words()}" for process in present)

    def kill(self) -> None:
        """End all processes that still run."""
        for desk in self._desks:
            self._kill(desk)
