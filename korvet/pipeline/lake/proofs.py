"""The proofs of tables (`korvet.pipeline.plan.proofs`), read from Delta's log and kept in it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pyspark.sql import SparkSession

from korvet.pipeline.errors import PipelineError
from korvet.pipeline.failures import SPARK_ERRORS, failure
from korvet.pipeline.lake import files
from korvet.pipeline.lake.java import newest_snapshot
from korvet.pipeline.plan.proofs import PROPERTY, Found, Proven, Snapshot, find, must_be_kept, statement


def read_proven(spark: SparkSession, table: str) -> Proven | None:
    """The table's proof; None if there is no table, or no archive has written to it.

    :raises Unproven: if an archive has, and the proof is gone.
    :raises PipelineError: if something else is there, or its log cannot be read.
    """
    with _readable(table):
        found = _find(spark, table, _snapshot(spark, table))
    return None if found is None else found.proven


def keep_proven(spark: SparkSession, table: str) -> None:
    """Keep the table's proof in its property, if it must be kept.

    :raises Unproven, PipelineError: as `read_proven`.
    """
    with _readable(table):
        snapshot = _snapshot(spark, table)
        found = _find(spark, table, snapshot)
    if snapshot is None or found is None or not must_be_kept(found, time.time()):
        return
    try:
        spark.sql(statement(files.uri(spark, table), found.proven.to_json(snapshot.transaction)))
    except SPARK_ERRORS as error:
        raise PipelineError(f"{table}: its proof cannot be kept: {failure(error)}") from None


def is_archived(spark: SparkSession, table: str) -> bool:
    """True if there is a table that an archive has written to."""
    snapshot = _snapshot(spark, table)
    return snapshot is not None and snapshot.last is not None


def last_transaction(spark: SparkSession, table: str, application: str) -> int | None:
    """The version of the application's last transaction.

    :raises PipelineError:
    """
    with _readable(table):
        snapshot = _snapshot(spark, table)
    return None if snapshot is None else snapshot.transactions.get(application)


def latest_version(spark: SparkSession, table: str) -> int | None:
    """The number of the table's newest commit; None if there is no table.

    :raises PipelineError:
    """
    with _readable(table):
        snapshot = delta_snapshot(spark, table)
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


def _snapshot(spark: SparkSession, table: str) -> Snapshot | None:
    snapshot = delta_snapshot(spark, table)
    if snapshot is None:
        return None
    kept, transactions = snapshot.metadata().configuration().get(PROPERTY), {}
    entries = snapshot.transactions().iterator()
    while entries.hasNext():
        entry = entries.next()
        transactions[str(entry._1())] = int(entry._2())
    return Snapshot(
        version=int(snapshot.version()),
        kept=str(kept.get()) if kept.isDefined() else None,
        transactions=transactions,
    )


def _find(spark: SparkSession, table: str, snapshot: Snapshot | None) -> Found | None:
    if snapshot is None:
        return None

    def read(version: int) -> str | None:
        return files.read_text(spark, f"{table}/_delta_log/{version:020d}.json")

    return find(snapshot, read, table, lambda: files.uri(spark, table))


@contextmanager
def _readable(table: str) -> Iterator[None]:
    try:
        yield
    except SPARK_ERRORS as error:
        raise PipelineError(f"{table}: its Delta log cannot be read: {failure(error)}") from None
