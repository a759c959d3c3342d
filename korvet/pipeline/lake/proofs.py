"""The proofs of tables (`korvet.pipeline.plan.proofs`), read from Delta's log and kept in it."""

from __future__ import annotations

import time
from typing import Any

from pyspark.sql import SparkSession

from korvet.pipeline.errors import PipelineError
from korvet.pipeline.failures import SPARK_ERRORS, failure
from korvet.pipeline.lake import files
from korvet.pipeline.lake.files import newest_snapshot
from korvet.pipeline.plan.proofs import PROPERTY, Found, Proven, Snapshot, find, must_be_kept, statement


def read_proven(spark: SparkSession, table: str) -> Proven | None:
    """The table's proof; None if there is no table, or no archive has written to it.

    :raises Unproven: if an archive has, and the proof is gone.
    :raises PipelineError: if something else is there, or its log cannot be read.
    """
    found = _find(spark, table, snapshot(spark, table))
    return None if found is None else found.proven


def keep_proven(spark: SparkSession, table: str) -> None:
    """Keep the table's proof in its property, if it must be kept.

    :raises Unproven, PipelineError: as `read_proven`.
    """
    seen = snapshot(spark, table)
    found = _find(spark, table, seen)
    if seen is None or found is None or not must_be_kept(found, time.time()):
        return
    try:
        spark.sql(statement(files.uri(spark, table), found.proven.to_json(seen.transaction)))
    except SPARK_ERRORS as error:
        raise PipelineError(f"{table}: its proof cannot be kept: {failure(error)}") from None


def is_archived(spark: SparkSession, table: str) -> bool:
    """True if there is a table that an archive has written to."""
    seen = snapshot(spark, table)
    return seen is not None and seen.last is not None


def delta_snapshot(spark: SparkSession, table: str) -> Any:
    """Delta's own view of the table as it is now; None if there is no table.

    :raises PipelineError: if something else is there.
    """
    match files.kind(spark, table):
        case "absent" | "empty":
            return None
        case "file":
            raise PipelineError(f"{table}: a file is in the way of the table; move it, or name another lake")
    found = newest_snapshot(spark, table)
    if found.version() < 0:
        if files.kind(spark, f"{table}/_delta_log") != "absent":
            # Delta makes the directory first: a first write was cut off, and readers see nothing of it.
            return None
        raise PipelineError(f"{table}: there are files, but no Delta table; move them away, or name another lake")
    return found


def snapshot(spark: SparkSession, table: str) -> Snapshot | None:
    """The table as it is now; None if there is no table.

    :raises PipelineError: if something else is there, or its log cannot be read.
    """
    try:
        seen = delta_snapshot(spark, table)
        if seen is None:
            return None
        kept, transactions = seen.metadata().configuration().get(PROPERTY), {}
        entries = seen.transactions().iterator()
        while entries.hasNext():
            entry = entries.next()
            transactions[str(entry._1())] = int(entry._2())
    except SPARK_ERRORS as error:
        raise PipelineError(f"{table}: its Delta log cannot be read: {failure(error)}") from None
    return Snapshot(
        version=int(seen.version()),
        kept=str(kept.get()) if kept.isDefined() else None,
        transactions=transactions,
    )


def _find(spark: SparkSession, table: str, seen: Snapshot | None) -> Found | None:
    if seen is None:
        return None

    def read(version: int) -> str | None:
        return files.read_text(spark, f"{table}/_delta_log/{version:020d}.json")

    return find(seen, read, table, lambda: files.uri(spark, table))
