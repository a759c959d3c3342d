"""A bank whose books are transactions, kept while all processes under it are killed.

Money moves between accounts, in the topics of `books.py`:

    orders ──▶ clerks ──▶ ledger ──▶ accountants ──▶ balances
               tellers ──▶

Clerks are one consumer group (librdkafka, the Java client). In one transaction they read `orders`, write two entries of
each into `ledger`, and commit their positions. Tellers (librdkafka) write both entries of transfers of their own.
Accountants (aiokafka, fixed partitions) read the ledger's committed entries and write each account's balance into a
compacted topic. Workers abort a part of all transactions on purpose, and do their work again.

Each round kills processes at random for a while, and then all workers at once. When their transactions are over, the
books must be right in every particular. After the last round the workers finish all orders, and the run reads the books
once more.
"""

import random
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from scripts.chaosrun import checks as common
from scripts.chaosrun.bank import checks
from scripts.chaosrun.bank.books import ACCOUNTANTS, CLERKS, ORDERS
from scripts.chaosrun.bank.cuts import OPTIONS, Cutter, cutting
from scripts.chaosrun.bank.reading import Auditor, Books, Watch, watching
from scripts.chaosrun.bank.staff import WORKERS, Post, Staff
from scripts.chaosrun.journal import Event, Journals, Partition, Transacted
from scripts.chaosrun.load import WITHIN_S, LoadError, holds
from scripts.chaosrun.stage import DURABLE, Stage, kill_and_start, running_stage
from tests.support.redis import Kind
from tests.support.tier import take_over

ROUND_S: Final = 60.0
TIMEOUT_MS: Final = 5000
DECK: Final = ("front-end",) * 3 + ("worker",) * 3 + ("Redis", "hang")
IN_TIER: Final = {"remote.storage.enable": "true", "retention.ms": "-1", "local.retention.ms": "1"}
CLAIMS: Final = {
    "money": "no money comes from nowhere or goes there",
    "whole": "a transaction is there wholly or not at all",
    "once": "every transfer is there once, with both its halves",
    "order": "entries are in their client's order",
    "committed": "what was acknowledged as committed is there",
    "aborted": "what was acknowledged as aborted is not",
    "counted": "an order is in the ledger where it is below the group's committed position, and else not",
    "balances": "the second stage counted every entry once",
    "reader": "who reads all the time reads what a later reader does",
    "orders": "every acknowledged order is there once",
    "end": "nothing hangs, and nobody gives up",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """The events in the bank. `violations`: claim -> the facts that contradict it."""

    seconds: float
    happened: Counter[str]
    orders: int
    transfers: int
    committed: int
    aborted: int
    unknown: int
    audits: int
    violations: dict[str, list[str]]

    @property
    def did(self) -> str:
        return ", ".join(f"{what} {count}" for what, count in sorted(self.happened.items()))

    @property
    def stands(self) -> bool:
        return not any(self.violations.values())


class Bank:
    """The bank on its stage."""

    def __init__(
        self,
        stage: Stage,
        staff: Staff,
        auditor: Auditor,
        watch: Watch,
        journals: Journals,
        cutter: Cutter | None = None,
        tier: Path | None = None,
    ) -> None:
        self._stage, self.staff, self._auditor, self._watch = stage, staff, auditor, watch
        self._journals = journals
        self._cutter, self._tier = cutter, tier
        self.happened: Counter[str] = Counter()
        self.violations: dict[str, list[str]] = {claim: [] for claim in CLAIMS}
        self.audits = 0
        self.books: Books | None = None

    def open(self) -> None:
        """Wait until every worker has done something once."""
        absent: set[str] = set()

        def is_open() -> bool:
            nonlocal absent
            self._journals.read()
            seen = {event.client for event in self._journals.events if isinstance(event, Transacted)}
            absent = self.staff.workers - seen
            return not absent

        self._until(is_open, lambda: f"{sorted(absent)} did nothing:\n{self.staff.last_words(absent)}")

    def work(self, seconds: float) -> None:
        """Kill a process about each second, for this time."""
        ends, deck = time.monotonic() + seconds, ["Redis"] if self._cutter is not None else []
        while (now := time.monotonic()) < ends:
            deck = deck or self.staff.chance.sample(DECK, len(DECK))
            self._strike(deck.pop())
            due = now + self.staff.chance.uniform(0.5, 1.5)
            while time.monotonic() < due:
                self.staff.mind()
                time.sleep(0.05)

    def _strike(self, what: str) -> None:
        if what == "front-end":
            if len(up := self._stage.up()) > 1:
                kill_and_start(self.staff.chance.choice(up))
                self.happened["front-ends killed"] += 1
        elif what == "worker":
            self.staff.kill_one()
        elif what == "hang":
            self.staff.hang_one()
        elif self._cutter is not None:
            self._cutter.kill_and_cut(self.staff.chance, self.staff.chance.uniform(0, 1))
            self.happened["Redis killed, its file cut"] += 1
        else:
            assert self._stage.server is not None
            self._stage.server.kill()
            time.sleep(self.staff.chance.uniform(0, 1))
            self._stage.server.start()
            self.happened["Redis killed"] += 1
        if what == "Redis" and self._tier is not None and self._stage.server is not None:
            # Each new run of Redis would wait for 40 s, in which it dies again.
            take_over(self._stage.server, self._tier)

    def audit(self) -> None:
        """Kill all workers, let their transactions end by time, and look at the books as they are then."""
        self.staff.shut()
        self._stage.balancer.wait_until_up()
        self._await_closed()
        self._judge()
        self.staff.open()

    def close(self) -> None:
        """Finish all orders without further harm, and look at the books for the last time."""
        self.staff.leave(lambda post: post.group == "")
        ordered = self._auditor.ends(ORDERS)
        self._until(lambda: self._is_through(CLERKS, ordered), lambda: f"orders up to {ordered} are not carried out")
        self.staff.leave(lambda post: post.group == CLERKS)
        entered = {each.partition: each.offset + 1 for each in self._auditor.ledger()}
        self._until(lambda: self._is_through(ACCOUNTANTS, entered), lambda: f"entries up to {entered} are not balanced")
        self.staff.leave(lambda post: True)
        self._await_closed()
        posted = self._judge().posted
        if self._cutter is None:
            self._until(lambda: len(self._watch.posted) >= len(posted), lambda: "the watching reader reads no more")
            self._note("reader", checks.rewritten(self._watch.posted, posted))

    def _is_through(self, group: str, positions: Mapping[Partition, int]) -> bool:
        committed = self._auditor.positions(group)
        return all(committed.get(partition, 0) >= position for partition, position in positions.items())

    def _await_closed(self) -> None:
        """Wait until no transaction is open anywhere."""
        found: list[str] = []

        def is_closed() -> bool:
            nonlocal found
            found = self._auditor.left_open()
            return not found

        self._until(is_closed, lambda: f"open: {found}")

    def _until(self, condition: Callable[[], bool], what: Callable[[], str]) -> None:
        deadline = time.monotonic() + WITHIN_S
        while not holds(condition):
            self.staff.mind()
            if time.monotonic() > deadline:
                raise LoadError(what())
            time.sleep(0.1)

    def _judge(self) -> Books:
        """Look at the books while nothing is open."""
        self._journals.read()
        events = list(self._journals.events)
        books = self._auditor.read()
        self.books, self.audits = books, self.audits + 1
        is_owed = self._cutter.is_owed if self._cutter is not None else always
        for claim, found in judged(books, events, is_owed).items():
            self._note(claim, found)
        if self._cutter is None:
            # The reader that reads all the time has read lost records.
            self._note("reader", checks.rewritten(self._watch.posted, books.posted))
        return books

    def _note(self, claim: str, found: Sequence[str]) -> None:
        """Add each violation once: a fact that is wrong at one audit is wrong at the next."""
        self.violations[claim] += [each for each in found if each not in self.violations[claim]]

    def kept(self, seconds: float) -> Kept:
        """The outcome of the run."""
        self._journals.read()
        ended = Counter(event.is_commit for event in self._journals.events if isinstance(event, Transacted))
        known = {event.transaction for event in self._journals.events if isinstance(event, Transacted)}
        books, staff = self.books, self.staff
        if self._cutter is not None:
            self.happened["bytes lost"] = self._cutter.lost_bytes
        happened = self.happened + Counter({
            "workers killed": staff.killed, "workers hung": staff.hung, "workers fenced": staff.fenced,
            "workers began anew": staff.anew,
        })  # fmt: skip
        return Kept(
            seconds=seconds,
            happened=happened,
            orders=len(books.orders) if books else 0,
            transfers=len({each.entry.transfer for each in books.posted}) if books else 0,
            committed=ended[True],
            aborted=ended[False],
            unknown=len(books.transactions - known) if books else 0,
            audits=self.audits,
            violations=self.violations,
        )


def always(_at_us: int) -> bool:
    """True: without cuts every answer is owed."""
    return True


def judged(books: Books, events: Sequence[Event], is_owed: Callable[[int], bool] = always) -> dict[str, list[str]]:
    """The facts in the books that contradict the claims, by the answers that clients got."""
    owed = [event for event in events if is_owed(event.at_us)]
    of_ledger = [event for event in owed if not event.client.startswith("accountant-")]
    return {
        "money": checks.leaks(books.posted),
        "whole": checks.torn(books.posted),
        "once": checks.miscounted(books.posted),
        "order": checks.disordered(books.posted),
        "committed": checks.forgotten({each.entry.transaction for each in books.posted}, of_ledger),
        "aborted": checks.undead(books.transactions, events),
        "counted": checks.uncounted(books.orders, books.posted, books.clerks),
        "balances": checks.unbalanced(books.balances, books.posted, books.accountants),
        "orders": checks.misplaced(books.orders, owed),
        "end": common.gave_up(events),
    }


def keep(
    *,
    seconds: float,
    seed: int,
    kind: Kind,
    workers: Sequence[Post] = WORKERS,
    directory: Path | None = None,
    cuts: bool = False,
    has_tier: bool = False,
    report: Callable[[str], None] = print,
) -> Kept:
    """Keep the bank for about so many seconds, and print a line for each round.

    :param cuts: Redis loses its last writes each time that it is killed.
    :param directory: keeps journals and logs; without it they are deleted.
    :param has_tier: most orders and entries are only in a tier.
    """
    with ExitStack() as stack:
        directory = directory or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kv")))
        tier = directory / "tier" if has_tier else None
        stage = stack.enter_context(running_stage("single", kind, directory, OPTIONS if cuts else DURABLE, tier))
        auditor = Auditor(stage)
        auditor.make_topics(IN_TIER if has_tier else {})
        watch = stack.enter_context(watching(stage.bootstrap))
        staff = Staff(stage.bootstrap, directory, TIMEOUT_MS, random.Random(seed), workers)
        stack.callback(staff.kill)
        assert stage.server is not None
        cutter = stack.enter_context(cutting(stage.server)) if cuts else None
        bank = Bank(stage, staff, auditor, watch, Journals(directory), cutter, tier)
        began = time.monotonic()
        rounds = max(1, round(seconds / ROUND_S))
        try:
            bank.open()
            for number in range(rounds):
                bank.work(seconds / rounds)
                bank.audit()
                kept = bank.kept(time.monotonic() - began)
                found = sum(len(violations) for violations in kept.violations.values())
                report(f"round {number + 1} of {rounds}: {kept.transfers} transfers, {kept.did}; {found} violations")
            bank.close()
        except LoadError as error:
            bank.violations["end"].append(str(error))
        if has_tier:
            bank.happened["records only in the tier"] = auditor.only_tiered()
        return bank.kept(time.monotonic() - began)
