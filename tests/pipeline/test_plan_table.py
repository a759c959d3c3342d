"""Archives of a topic side by side, over a log in memory with Delta's rules: each record once, by one at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from korvet.pipeline.errors import PipelineError
from korvet.pipeline.plan.batch import planned
from korvet.pipeline.plan.positions import Position, Topic
from korvet.pipeline.plan.proofs import Commit, Proven, found_in
from korvet.pipeline.plan.table import RETYPING, Conflict, How, Overtaken, ProvenTable

TOPIC = Topic(name="t", id="id", partitions=(0,))
NO_TRANSACTION = -1


@dataclass
class Log:
    """The commits of a table: the proof, if an archive wrote it, and the offsets that the table then has."""

    commits: list[tuple[Proven | None, list[int]]] = field(default_factory=list)
    between: Callable[[], object] = lambda: None
    """What others do between the next commit's read of the table and its write."""

    @property
    def rows(self) -> list[int]:
        return self.commits[-1][1] if self.commits else []

    @property
    def last(self) -> int:
        return max((proven.transaction_version for proven, _ in self.commits if proven), default=NO_TRANSACTION)


class Table(ProvenTable[list[int]]):
    """The table, as one archive has it."""

    def __init__(self, log: Log) -> None:
        self._log = log
        super().__init__("t/raw")

    def _read(self) -> Proven | None:
        commits = (Commit(proven, 0) for proven, _ in reversed(self._log.commits) if proven is not None)
        found = found_in(None, NO_TRANSACTION, commits)
        return None if found is None else found.proven

    def _is_there(self) -> bool:
        return bool(self._log.commits)

    def _last_transaction(self, application: str) -> int | None:
        return self._log.last

    def _save(self, rows: list[int] | None, proven: Proven, how: How) -> None:
        log, seen, last = self._log, len(self._log.commits), self._log.last
        if how == "make" and seen:
            raise Conflict
        if proven.transaction_version <= last:
            return
        others, log.between = log.between, lambda: None
        others()
        if len(log.commits) > seen:
            raise Conflict
        before = [] if how == "replace" else log.rows
        log.commits.append((replace(proven, rows=len(rows or ())), [*before, *(rows or ())]))


def proven(end: int, checkpoint: str = "one") -> Proven:
    return Proven(topic="t", topic_id="id", generation=1, batch_id=0, offsets={0: end}, checkpoint=checkpoint)


def test_claim_takes_the_table_from_the_archive_before() -> None:
    log = Log()
    older = Table(log)
    older.append([0], proven(1))
    newer = Table(log)
    older.append([1], proven(2))
    newer.claim("t", "id", "two")
    # Rows written after its first look count.
    assert (newer.next_offset(0), newer.proven and newer.proven.generation) == (2, 2)
    for _ in range(2):
        with pytest.raises(Overtaken, match="another archive writes to this table"):
            older.append([2], proven(3))
        newer.append([len(log.rows)], proven(len(log.rows) + 1, "two"))
    assert log.rows == [0, 1, 2, 3]


def test_claim_beside_a_batch_has_that_batch_or_ends_it() -> None:
    log = Log()
    older = Table(log)
    older.append([0], proven(1))
    newer = Table(log)
    log.between = lambda: older.append([1], proven(2))
    newer.claim("t", "id", "two")
    assert newer.next_offset(0) == 2
    log.between = lambda: Table(log).claim("t", "id", "three")
    with pytest.raises(Overtaken):
        newer.append([2], proven(3, "two"))
    assert log.rows == [0, 1]


def test_claim_has_the_offsets_of_all_commits_before_it() -> None:
    """Delta may delete these commits."""
    log = Log()
    older = Table(log)
    older.append([0], proven(1))

    class Slow(Table):
        def _is_there(self) -> bool:
            # It has read the proof by now.
            if len(log.commits) == 1:
                older.append([1], proven(2))
            return super()._is_there()

    Slow(log).claim("t", "id", "two")
    claim, _ = log.commits[-1]
    assert claim is not None and claim.is_claim and claim.offsets == {0: 2}


def test_archives_that_claim_a_table_all_the_time_end() -> None:
    log = Log()
    Table(log).append([0], proven(1))
    rival = Table(log)

    def again() -> None:
        rival.claim("t", "id", "rival")
        log.between = again

    log.between = again
    with pytest.raises(Overtaken):
        Table(log).claim("t", "id", "two")


def test_one_of_two_archives_makes_a_table() -> None:
    log = Log()
    first, second = Table(log), Table(log)
    first.append([0], proven(1))
    # Its batches may have higher numbers than the table's.
    with pytest.raises(Overtaken):
        second.append([0], replace(proven(1, "two"), batch_id=5))
    in_one_instant = Log()
    first, second = Table(in_one_instant), Table(in_one_instant)
    in_one_instant.between = lambda: first.append([0], proven(1))
    with pytest.raises(Overtaken):
        second.append([0], proven(1, "two"))
    # A commit whose answer was lost is there.
    same = Log()
    tables = [Table(same) for _ in range(2)]
    assert [table.append([0], proven(1)) for table in tables] == [1, 1]
    assert log.rows == in_one_instant.rows == same.rows == [0]


def test_commit_of_somebody_else_is_no_other_archive() -> None:
    log = Log()
    table = Table(log)
    table.append([0], proven(1))
    log.between = lambda: log.commits.append((None, log.rows))
    assert table.append([1], proven(2)) == 1

    def again() -> None:
        log.commits.append((None, log.rows))
        log.between = again

    log.between = again
    with pytest.raises(Overtaken):
        table.append([2], proven(3))
    assert log.rows == [0, 1]


def test_archive_does_not_make_a_deleted_table_anew() -> None:
    log = Log()
    table = Table(log)
    table.append([0], proven(1))
    log.commits.clear()
    for write in (lambda: table.append([1], proven(2)), lambda: table.claim("t", "id", "two")):
        with pytest.raises(PipelineError, match="the table was deleted"):
            write()
    log.commits.append((None, [7]))
    with pytest.raises(PipelineError, match="was not written by an archive"):
        Table(log)
    assert log.rows == [7]


def test_last_retype_replaces_a_table_that_no_archive_claims_meanwhile() -> None:
    log = Log()
    archive = Table(log)
    archive.append([1, 2], proven(3))
    first, second = Table(log), Table(log)
    first.claim("t", "id", RETYPING)
    with pytest.raises(PipelineError, match="'korvet pipeline retype' runs, or was cut off"):
        archive.claim("t", "id", "one")
    with pytest.raises(Overtaken):
        archive.append([3], proven(4))
    second.claim("t", "id", RETYPING)
    with pytest.raises(Overtaken):
        first.replace([], proven(3, ""))
    assert log.rows == [1, 2]
    assert second.replace([1], proven(3, "")) == 1
    archive.claim("t", "id", "one")
    assert log.rows == [1] and archive.next_offset(0) == 3


def test_proof_that_was_reset_is_a_later_one() -> None:
    log = Log()
    table = Table(log)
    table.append([0, 1], proven(2))
    table.reset(proven(1))
    again = Table(log)
    again.claim("t", "id", "two")
    again.append([1], proven(2, "two"))
    assert log.rows == [0, 1, 1]
    with pytest.raises(Overtaken):
        table.append([1], proven(2))


class Archive:
    """An archive that plans its batches by the table's proof, as `TopicWriter` does."""

    def __init__(self, log: Log, name: str) -> None:
        self.table, self._name = Table(log), name
        self._is_claimed = False

    def go_on(self, end: int, most: int) -> None:
        if not self._is_claimed:
            self.table.claim("t", "id", self._name)
            self._is_claimed = True
        ends = {0: Position(offset=end, leader_epoch=0)}
        batch = planned({0: self.table.next_offset(0)}, {0: end}, ends, self.table.proven, most)
        if batch is not None:
            rows = list(range(batch.begins[0], batch.ends[0]))
            assert self.table.append(rows, batch.proven(TOPIC, self.table.proven, self._name)) == len(rows)


STEPS = st.tuples(
    st.integers(0, 2), st.integers(1, 4), st.booleans(), st.sampled_from(["goes on", "beside the next", "dies"])
)
"""An archive of three, the most offsets of its batch, whether the topic grows before, and what happens to it."""


@given(st.lists(STEPS, max_size=20))
def test_archives_that_die_and_overtake_each_other_write_each_record_once(
    steps: list[tuple[int, int, bool, str]],
) -> None:
    log, archives, end = Log(), dict[int, Archive](), 0

    def go_on(which: int, most: int) -> None:
        archive = archives.setdefault(which, Archive(log, f"{which}-{len(log.commits)}"))
        try:
            archive.go_on(end, most)
        except Overtaken:
            del archives[which]

    for which, most, grows, fate in steps:
        end += 5 if grows else 0
        if fate == "dies":
            archives.pop(which, None)
        elif fate == "beside the next":
            log.between = lambda which=(which + 1) % 3, most=most: go_on(which, most)  # type: ignore[misc]
        go_on(which, most)
        assert log.rows == list(range(Table(log).next_offset(0)))
    # Whatever happened, a new archive ends with all of them.
    log.between = lambda: None
    last = Archive(log, "last")
    for _ in range(end):
        last.go_on(end, 5)
    assert log.rows == list(range(end))
