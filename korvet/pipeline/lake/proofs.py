"""Proofs: the offsets of its topic that a table holds, by its own Delta log.

Each commit of an archive tells in Delta's ``userMetadata`` the offsets below which the table then holds everything. The
newest such commit counts: other commits in between, such as OPTIMIZE, change no rows. A RESTORE leads to the
commits up to the version that it restored. Delta keeps commits for 30 days. If no commit of an archive is left, the
rows tell the offsets, and the table's application transactions tell the rest.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final, Self

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from korvet.pipeline.errors import PipelineError
from korvet.pipeline.failures import failure
from korvet.pipeline.lake import files
from korvet.pipeline.lake.java import newest_snapshot
from korvet.pipeline.lake.losses import Loss

APPLICATION: Final = "korvet.archive/"
"""The prefix of the application ids of Delta's transactions; the topic's id follows."""
_VERSION: Final = 1
GENERATION_BITS: Final = 32
"""The low bits of a transaction's version, which hold the batch's number; the generation is above them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proven:
    """Everything of the topic below ``offsets``, by partition, is in the table.

    ``leader_epochs`` are of the archived history. ``generation`` counts the archives that have written to the table.
    ``checkpoint`` is the id of the last one, ``batch_id`` the number of its batch, -1 before its first. A claim
    begins a generation without offsets: the offsets of the commits before it hold. ``losses`` are exceptions: offsets
    that the archive went on without. ``rows`` counts the rows of the last batch, if known.
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

    def to_json(self) -> str:
        """The text for ``userMetadata``."""
        told = {
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


def read_proven(spark: SparkSession, table: str) -> Proven | None:
    """The table's proof; None if there is no table, or no archive has written to it.

    :raises PipelineError: if something else is there, or its log cannot be read.
    """
    try:
        snapshot = delta_snapshot(spark, table)
        if snapshot is None:
            return None
        newest, holds = _told(spark, table, int(snapshot.version()))
        holds = holds or _counted(spark, table, snapshot)
    except (Py4JJavaError, PySparkException) as error:
        raise _unreadable(table, error) from None
    if holds is None:
        return None
    return replace(
        newest or holds,
        offsets=holds.offsets,
        leader_epochs=holds.leader_epochs,
        losses=holds.losses,
        is_claim=False,
    )


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


def _told(spark: SparkSession, table: str, version: int) -> tuple[Proven | None, Proven | None]:
    """The newest commit of an archive, and the newest commit with offsets; None for one that is gone."""
    newest: Proven | None = None
    while version >= 0:
        text = files.read_text(spark, f"{table}/_delta_log/{version:020d}.json")
        if text is None:
            break
        commit = _commit_info(text)
        found = Proven.from_json(commit.get("userMetadata", ""))
        if found is not None:
            found = replace(found, rows=int(commit.get("operationMetrics", {}).get("numOutputRows", 0)))
            newest = newest or found
            if not found.is_claim:
                return newest, found
        version = _before(commit, version)
    return newest, None


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


def _counted(spark: SparkSession, table: str, snapshot: Any) -> Proven | None:
    """A proof from the table's rows. It misses offsets at the end that are no rows, such as markers of transactions."""
    ours = {name: version for name, version in _transactions(snapshot).items() if name.startswith(APPLICATION)}
    if not ours:
        return None
    application, version = max(ours.items(), key=lambda each: each[1])
    rows = spark.read.format("delta").load(table)
    of_partition, of_offset = ("_partition", "_offset") if "_offset" in rows.columns else ("partition", "offset")
    counted = rows.groupBy(of_partition).agg((F.max(of_offset) + 1).alias("next")).collect()
    return Proven(
        topic=table.rstrip("/").split("/")[-2],
        topic_id=application.removeprefix(APPLICATION),
        generation=version >> GENERATION_BITS,
        batch_id=(version & ((1 << GENERATION_BITS) - 1)) - 1,
        offsets={row[of_partition]: row["next"] for row in counted},
    )


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
