"""Proofs: the offsets of its topic that a table holds, by its own Delta log.

Each commit of an archive tells in Delta's ``userMetadata`` the offsets below which the table then holds everything. The
newest such commit counts: other commits in between, such as OPTIMIZE, change no rows. A RESTORE leads to the
commits up to the version that it restored.

Delta deletes commits after 30 days. So the proof of a table that nobody writes to is kept as the table's property
`PROPERTY` too, which every snapshot has (`keep_proven`). It counts as long as the last transaction that it names is the
table's last one; transactions are in every snapshot, too. What neither tells is unknown, and never guessed of rows:
these may have expired, and say nothing of a place where an archive began at the end.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final, NamedTuple, Self

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from korvet.pipeline.errors import PipelineError
from korvet.pipeline.failures import failure
from korvet.pipeline.lake import files
from korvet.pipeline.lake.java import newest_snapshot
from korvet.pipeline.lake.losses import Loss

APPLICATION: Final = "korvet.archive/"
"""The prefix of the application ids of Delta's transactions; the topic's id follows."""
PROPERTY: Final = "korvet.proof"
"""The property of a table whose proof may outlive the commit that told it."""
KEEP_AFTER_S: Final = 3600.0
"""The age at which a commit's proof becomes the property as well. A busy table's commits are never so old."""
_NO_TRANSACTION: Final = -1
_VERSION: Final = 1
GENERATION_BITS: Final = 32
"""The low bits of a transaction's version, which hold the batch's number; the generation is above them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proven:
    """Everything of the topic below ``offsets``, by partition, is in the table.

    ``leader_epochs`` are of the archived history. ``generation`` counts the archives that have written to the table.
    ``checkpoint`` is the id of the last one, ``batch_id`` the number of its batch, -1 before its first. A claim
    begins a generation with the offsets of the commits before it, which count while they are there. ``losses`` are
    exceptions: offsets that the archive went on without. ``rows`` counts the rows of the last batch, if known.
    """

    topic: str
    topic_id: str
    generation: int
    batch_id: int
    offsets: Mapping[int, int]
    leader_epochs: Mapping[int, int] = field(default_factory=dict)
    checkpoint: str = ""
    is_claim: bool = False
    losses: tuple[Loss, ...] = ()
    rows: int = field(default=0, compare=False)

    @property
    def transaction_version(self) -> int:
        """The version of Delta's transaction, which grows with each batch and each generation."""
        return self.generation << GENERATION_BITS | (self.batch_id + 1)

    def to_json(self, transaction: int | None = None) -> str:
        """The text for ``userMetadata``; for the property with the version of the table's last transaction."""
        told = {
            **({} if transaction is None else {"transaction": transaction}),
            "version": _VERSION,
            "topic": self.topic,
            "topic_id": self.topic_id,
            "generation": self.generation,
            "batch_id": self.batch_id,
            "offsets": {str(number): offset for number, offset in sorted(self.offsets.items())},
            "leader_epochs": {str(number): epoch for number, epoch in sorted(self.leader_epochs.items())},
            "checkpoint": self.checkpoint,
            "claim": self.is_claim,
            "losses": [asdict(loss) for loss in self.losses],
        }
        return json.dumps({"korvet": told})

    @classmethod
    def from_json(cls, text: str) -> Self | None:
        """The proof in a text of ``userMetadata``; None if no archive wrote it."""
        try:
            told = json.loads(text)["korvet"]
        except (ValueError, KeyError, TypeError):
            return None
        return cls(
            topic=told["topic"],
            topic_id=told["topic_id"],
            generation=told["generation"],
            batch_id=told["batch_id"],
            offsets={int(number): offset for number, offset in told["offsets"].items()},
            leader_epochs={int(number): epoch for number, epoch in told["leader_epochs"].items()},
            checkpoint=told["checkpoint"],
            is_claim=told["claim"],
            losses=tuple(Loss(**loss) for loss in told.get("losses", [])),
        )


class Unproven(PipelineError):
    """A table of an archive does not tell any more what it holds."""


class Found(NamedTuple):
    """A proof, and where it was."""

    proven: Proven
    is_property: bool
    told_ms: int
    """The time of the commit that told the offsets, in ms since 1970; 0 of a property."""


class Commit(NamedTuple):
    """A commit of an archive."""

    proven: Proven
    time_ms: int


def found_in(kept: str | None, transaction: int, commits: Iterable[Commit]) -> Found | None:
    """The proof of a table; None if it is unknown.

    :param kept: the property, if there is one.
    :param transaction: the version of the table's last transaction.
    :param commits: of archives, the newest first, as far as the log has them.
    """
    proven = None if kept is None else Proven.from_json(kept)
    if proven is not None and json.loads(kept or "")["korvet"].get("transaction") == transaction:
        return Found(proven, True, 0)
    newest = claim = None
    for commit in commits:
        newest = newest or commit
        if not commit.proven.is_claim:
            return _merged(newest, commit)
        claim = claim or commit
    # The claim has read what the commits before it told.
    return None if newest is None or claim is None or not claim.proven.offsets else _merged(newest, claim)


def _merged(newest: Commit, holds: Commit) -> Found:
    proven = replace(
        newest.proven,
        offsets=holds.proven.offsets,
        leader_epochs=holds.proven.leader_epochs,
        losses=holds.proven.losses,
        is_claim=False,
    )
    return Found(proven, False, holds.time_ms)


def read_proven(spark: SparkSession, table: str) -> Proven | None:
    """The table's proof; None if there is no table, or no archive has written to it.

    :raises Unproven: if an archive has, and the proof is gone.
    :raises PipelineError: if something else is there, or its log cannot be read.
    """
    found = _find(spark, table)
    return None if found is None else found.proven


def keep_proven(spark: SparkSession, table: str) -> None:
    """Have the table's property tell its proof, if the commit that does is older than `KEEP_AFTER_S`.

    :raises Unproven, PipelineError: as `read_proven`.
    """
    found = _find(spark, table)
    # A commit of the future is of a clock that was wrong.
    if found is None or found.is_property or abs(time.time() - found.told_ms / 1000) < KEEP_AFTER_S:
        return
    try:
        last = _last(newest_snapshot(spark, table))
        transaction = _NO_TRANSACTION if last is None else last[1]
        spark.sql(_statement(files.uri(spark, table), found.proven.to_json(transaction)))
    except (Py4JJavaError, PySparkException) as error:
        raise PipelineError(f"{table}: its proof cannot be kept: {failure(error)}") from None


def is_archived(spark: SparkSession, table: str) -> bool:
    """Whether there is a table that an archive has written to."""
    snapshot = delta_snapshot(spark, table)
    return snapshot is not None and _last(snapshot) is not None


def _find(spark: SparkSession, table: str) -> Found | None:
    try:
        snapshot = delta_snapshot(spark, table)
        if snapshot is None:
            return None
        last = _last(snapshot)
        transaction = _NO_TRANSACTION if last is None else last[1]
        found = found_in(_property(snapshot), transaction, _commits(spark, table, int(snapshot.version())))
        if found is not None or last is None:
            return found
        where = files.uri(spark, table)
    except (Py4JJavaError, PySparkException) as error:
        raise _unreadable(table, error) from None
    application, version = last
    proven = Proven(
        topic=table.rstrip("/").split("/")[-2],
        topic_id=application.removeprefix(APPLICATION),
        generation=version >> GENERATION_BITS,
        batch_id=(version & ((1 << GENERATION_BITS) - 1)) - 1,
        offsets={0: 0},
    )
    raise Unproven(
        f"{table}: its log does not tell any more up to which offsets it is complete, since Delta deleted the commits "
        "that did. Move the topic's directory away and archive the topic anew, or, if you know the next offset of each "
        f"partition, write these into: {_statement(where, proven.to_json(version))}"
    )


def _statement(where: str, text: str) -> str:
    path, value = where.replace("`", "``"), text.replace("\\", "\\\\").replace("'", "\\'")
    return f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES ('{PROPERTY}' = '{value}')"


def _property(snapshot: Any) -> str | None:
    found = snapshot.metadata().configuration().get(PROPERTY)
    return str(found.get()) if found.isDefined() else None


def last_transaction(spark: SparkSession, table: str, application: str) -> int | None:
    """The version of the application's last transaction.

    :raises PipelineError:
    """
    try:
        snapshot = delta_snapshot(spark, table)
        return None if snapshot is None else _transactions(snapshot).get(application)
    except (Py4JJavaError, PySparkException) as error:
        raise _unreadable(table, error) from None


def latest_version(spark: SparkSession, table: str) -> int | None:
    """The number of the table's newest commit; None if there is no table.

    :raises PipelineError:
    """
    try:
        snapshot = delta_snapshot(spark, table)
    except (Py4JJavaError, PySparkException) as error:
        raise _unreadable(table, error) from None
    return None if snapshot is None else int(snapshot.version())


def delta_snapshot(spark: SparkSession, table: str) -> Any:
    """Delta's own view of the table as it is now; None if there is no table.

    :raises PipelineError: if something else is there.
    """
    match files.kind(spark, table):
        case "absent" | "empty":
            return None
        case "file":
            raise PipelineError(f"{table}: a file is in the way of the table; move it, or name another lake")
    snapshot = newest_snapshot(spark, table)
    if snapshot.version() < 0:
        if files.kind(spark, f"{table}/_delta_log") != "absent":
            # Delta makes the directory first: a first write was cut off, and readers see nothing of it.
            return None
        raise PipelineError(f"{table}: there are files, but no Delta table; move them away, or name another lake")
    return snapshot


def _commits(spark: SparkSession, table: str, version: int) -> Iterator[Commit]:
    """The commits of archives from a version back, up to the first that is gone."""
    while version >= 0:
        text = files.read_text(spark, f"{table}/_delta_log/{version:020d}.json")
        if text is None:
            return
        commit = _commit_info(text)
        found = Proven.from_json(commit.get("userMetadata", ""))
        if found is not None:
            found = replace(found, rows=int(commit.get("operationMetrics", {}).get("numOutputRows", 0)))
            yield Commit(found, int(commit.get("timestamp", 0)))
        version = _before(commit, version)


def _before(commit: Mapping[str, Any], version: int) -> int:
    """The version to look at next: the restored one if the commit is a RESTORE, else the one before."""
    if commit.get("operation") != "RESTORE":
        return version - 1
    restored = commit.get("operationParameters", {}).get("version")
    # A RESTORE by time does not tell its version.
    return -1 if restored is None else int(restored)


def _commit_info(text: str) -> Mapping[str, Any]:
    for line in text.splitlines():
        if line.startswith('{"commitInfo"'):
            found: Mapping[str, Any] = json.loads(line)["commitInfo"]
            return found
    return {}


def _last(snapshot: Any) -> tuple[str, int] | None:
    """The application id and the version of the last transaction of an archive."""
    ours = {name: version for name, version in _transactions(snapshot).items() if name.startswith(APPLICATION)}
    return max(ours.items(), key=lambda each: each[1], default=None)


def _transactions(snapshot: Any) -> dict[str, int]:
    """Application id -> version of its last transaction."""
    found = {}
    entries = snapshot.transactions().iterator()
    while entries.hasNext():
        entry = entries.next()
        found[str(entry._1())] = int(entry._2())
    return found


def _unreadable(table: str, error: Exception) -> PipelineError:
    return PipelineError(f"{table}: its Delta log cannot be read: {failure(error)}")
