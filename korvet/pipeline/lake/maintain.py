"""Keep the lake's tables quick to read: join small files, and delete rows and files that are no longer needed.

Maintenance may run beside archives: compaction changes no rows, and rows expire by whole days of archiving, so neither
conflicts with appends. Delta cleans up its log by itself, by the table's property ``delta.logRetentionDuration``.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeVar

import structlog
from delta.tables import DeltaTable
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from korvet.pipeline.errors import PipelineError
from korvet.pipeline.failures import SPARK_ERRORS, failure
from korvet.pipeline.lake import files
from korvet.pipeline.lake.layout import ARCHIVED
from korvet.pipeline.lake.log_store import keep_one_writer
from korvet.pipeline.lake.proofs import is_archived, keep_proven
from korvet.pipeline.lake.table import COMPRESSION, CONFLICTS
from korvet.pipeline.plan.layout import Lake
from korvet.pipeline.plan.proofs import Unproven
from korvet.pipeline.session import session_like

log = structlog.get_logger()
T = TypeVar("T")

LEAST_RETENTION_HOURS: Final = 168.0
LEAST_AGE_HOURS: Final = 24.0
_TRIES: Final = 5
_OPTIMIZE: Final = "spark.databricks.delta.optimize"
_LISTING: Final = "spark.sql.sources.parallelPartitionDiscovery.parallelism"
_SAFETY: Final = "spark.databricks.delta.retentionDurationCheck.enabled"


@dataclass(frozen=True, slots=True, kw_only=True)
class MaintainConfig:
    """Which tables maintenance works on, and how.

    :param topics: topics of the lake; none means all.
    :param retention_hours: maintenance deletes files that the table has not needed for so long. Readers of an older
        version, and writers that take longer, find them gone. So less than a week has to be forced.
    :param file_bytes: about how large files become. Files of three quarters of it stay as they are.
    :param expire_hours: maintenance deletes rows that were archived longer ago, by whole days in UTC; at least a day.
        None keeps all rows.
    """

    lake: str
    topics: tuple[str, ...] = ()
    retention_hours: float = LEAST_RETENTION_HOURS
    force: bool = False
    file_bytes: int = 128 << 20
    expire_hours: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TableMaintained:
    """The outcome for a table: files before and after, and deleted rows. ``error`` says why it failed."""

    table: str
    files_compacted: int = 0
    files_written: int = 0
    rows_expired: int = 0
    error: PipelineError | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MaintainResult:
    """The outcome for each table, by its path."""

    tables: Mapping[str, TableMaintained]

    @property
    def failed(self) -> dict[str, PipelineError]:
        """The tables that could not be maintained, with the reason."""
        return {path: each.error for path, each in self.tables.items() if each.error is not None}


def maintain(
    spark: SparkSession,
    config: MaintainConfig,
    *,
    stop: threading.Event | None = None,
    progress: Callable[[TableMaintained], None] | None = None,
) -> MaintainResult:
    """Compact and vacuum the tables of a lake, one after the other.

    :param stop: once it is set, maintenance begins no other table.
    :raises PipelineError: if the configuration makes no sense, or the lake has no such topics.
    """
    if config.retention_hours < LEAST_RETENTION_HOURS and not config.force:
        raise PipelineError(
            f"retention of {config.retention_hours:g} hours: below {LEAST_RETENTION_HOURS:g} files may go that an "
            "archive or a reader still needs; force it only while none runs"
        )
    check_age(config.expire_hours)
    keep_one_writer(spark, config.lake)
    tables = _tables(spark, config)
    session = _session(spark, config)
    done: dict[str, TableMaintained] = {}
    for table in tables:
        if stop is not None and stop.is_set():
            break
        done[table] = _maintained(session, table, config)
        if progress is not None:
            progress(done[table])
    return MaintainResult(tables=done)


def check_age(expire_hours: float | None) -> None:
    """
    :raises PipelineError: if rows would expire within a day.
    """
    if expire_hours is not None and expire_hours < LEAST_AGE_HOURS:
        raise PipelineError(f"rows cannot expire after {expire_hours:g} hours: a day is the least")


def _tables(spark: SparkSession, config: MaintainConfig) -> list[str]:
    lake = Lake(config.lake)
    found: list[str] = []
    for topic in config.topics or files.directories(spark, config.lake):
        tables = (lake.raw(topic), lake.typed(topic), lake.dead_letters(topic))
        there = [table for table in tables if files.kind(spark, table) == "directory"]
        if there and is_archived(spark, lake.latest(topic)):
            # A table of that name in an older lake may be somebody else's.
            there.append(lake.latest(topic))
        if not there and topic in config.topics:
            raise PipelineError(f"topic {topic}: it has no tables in {config.lake}")
        found += there
    if not found:
        raise PipelineError(f"{config.lake}: there are no tables of an archive")
    return found


def _session(spark: SparkSession, config: MaintainConfig) -> SparkSession:
    """A session with settings of its own."""
    session = session_like(spark)
    session.conf.set(f"{_OPTIMIZE}.maxFileSize", config.file_bytes)
    session.conf.set(f"{_OPTIMIZE}.minFileSize", config.file_bytes * 3 // 4)
    session.conf.set(_SAFETY, not config.force)
    session.conf.set("spark.sql.parquet.compression.codec", COMPRESSION)
    # So many tasks list directories. With Spark's 10,000 that alone takes minutes on a small machine.
    session.conf.set(_LISTING, spark.sparkContext.defaultParallelism)
    return session


def _maintained(session: SparkSession, table: str, config: MaintainConfig) -> TableMaintained:
    try:
        # A table without its proof is maintained as well. The next archive says what to do.
        with suppress(Unproven):
            keep_proven(session, table)
        expired = 0 if _is_latest(table) else _expire(session, table, config.expire_hours)
        metrics = _repeated(lambda: _compact(session, table), table)
        DeltaTable.forPath(session, table).vacuum(config.retention_hours)
    except PipelineError as error:
        return TableMaintained(table=table, error=error)
    except SPARK_ERRORS as error:
        return TableMaintained(table=table, error=PipelineError(f"{table}: it was not maintained: {failure(error)}"))
    return TableMaintained(
        table=table,
        files_compacted=metrics["numFilesRemoved"],
        files_written=metrics["numFilesAdded"],
        rows_expired=expired,
    )


def _is_latest(table: str) -> bool:
    """True if the table holds the newest record of each key; their age does not count."""
    return Lake("").latest("").rpartition("/")[2] == table.rpartition("/")[2]


def _expire(session: SparkSession, table: str, hours: float | None) -> int:
    """Delete the rows of days of archiving that ended so long ago; returns their number.

    Rows of korvet up to 0.6 have no such day. They are older than all others, so they go with the first that go.
    """
    rows = session.read.format("delta").load(table)
    if hours is None or ARCHIVED not in rows.columns:
        return 0
    is_old = F.col(ARCHIVED) < F.lit((datetime.now(UTC) - timedelta(hours=hours)).date())
    if rows.where(is_old).isEmpty():
        return 0
    is_old |= F.col(ARCHIVED).isNull()
    count = rows.where(is_old).count()
    _repeated(lambda: DeltaTable.forPath(session, table).delete(is_old), table)
    return count


def _compact(session: SparkSession, table: str) -> Any:
    """Delta's figures."""
    row = DeltaTable.forPath(session, table).optimize().executeCompaction().first()
    assert row is not None
    return row["metrics"]


def _repeated(work: Callable[[], T], table: str) -> T:
    """Do the work again if another job's commit got in its way."""
    for left in reversed(range(_TRIES)):
        try:
            return work()
        except SPARK_ERRORS as error:
            if not left or not any(each in str(error) for each in CONFLICTS):
                raise
            log.info("another job changed the same table; trying again", table=table)
    raise AssertionError
