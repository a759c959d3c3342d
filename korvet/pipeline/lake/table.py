"""A table of the lake as one archive writes it: every batch once, and never two archives at a time.

All archives of a topic write under one of Delta's application ids. Each commit's transaction version is above all
versions before it. Its high bits are the generation, which grows with each archive that begins; its low bits are the
batch's number. Delta skips a commit whose version is not above the last, and lets one of two concurrent commits fail.
So Delta skips nothing although each archive counts its batches from 0. An archive that a new generation has overtaken
writes nothing any more: it does not find its own proof in the log. One commit makes a new table, and one of two
archives wins it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from korvet.pipeline.errors import PipelineError
from korvet.pipeline.failures import failure
from korvet.pipeline.lake.java import newest_snapshot
from korvet.pipeline.lake.layout import ARCHIVED
from korvet.pipeline.lake.log_store import keep_one_writer
from korvet.pipeline.lake.proofs import (
    APPLICATION,
    GENERATION_BITS,
    Proven,
    last_transaction,
    latest_version,
    read_proven,
)

COMPRESSION: Final = "zstd"
# Pages of this version hold growing numbers, as offsets and times are, as differences.
_PROPERTIES: Final = {"delta.parquet.format.version": "2.12.0"}
RETYPING: Final = "retyping"
"""The id in the claim on a table that is about to be replaced, which an archive may not claim."""
_CLAIMS: Final = 10
_TRIES: Final = 5
# Delta's errors for the later one of two archives: of one transaction, of rows, and of a table made or replaced.
_METADATA: Final = "DELTA_METADATA_CHANGED"
_OTHERS: Final = ("DELTA_CONCURRENT_TRANSACTION", "DELTA_CONCURRENT_APPEND", _METADATA)
_MADE_BY_OTHERS: Final = (*_OTHERS, "DELTA_PATH_EXISTS", "DELTA_PROTOCOL_CHANGED")


class Overtaken(PipelineError):
    """Another archive writes to the same table."""


class Table:
    """One table, as one archive writes it. ``proven`` is its proof; None before the first write.

    :param properties: Delta's, for a new table.
    :param partitioned_by: columns that partition a new table.
    """

    def __init__(
        self,
        spark: SparkSession,
        path: str,
        properties: Mapping[str, str],
        partitioned_by: tuple[str, ...] = (ARCHIVED,),
    ) -> None:
        keep_one_writer(spark, path)
        self._spark, self.path = spark, path
        self._properties, self._partitioned_by = dict(properties), partitioned_by
        self.proven = read_proven(spark, path)
        self._exists = self.proven is not None
        if not self._exists and latest_version(spark, path) is not None:
            raise PipelineError(f"{path}: this table was not written by an archive; move it, or name another lake")

    @property
    def id(self) -> str:
        """Delta's id of the table, which a table that is made anew does not have."""
        return str(newest_snapshot(self._spark, self.path).metadata().id())

    @property
    def rows(self) -> DataFrame | None:
        """The table's rows; None if there is no table yet."""
        return self._spark.read.format("delta").load(self.path) if self._exists else None

    def next_offset(self, partition: int) -> int:
        """The offset below which the table holds everything of the partition."""
        return 0 if self.proven is None else self.proven.offsets.get(partition, 0)

    def begin(self, columns: StructType, proven: Proven) -> None:
        """Make the table without rows, with a proof that says where it begins.

        :raises PipelineError:
        """
        self._write(self._nothing(columns), proven)
        self.proven, self._exists = read_proven(self._spark, self.path), True

    def claim(self, topic: str, topic_id: str, checkpoint: str) -> None:
        """Begin a generation: no other archive can write from then on. Reads the proof anew.

        The claim has the proof's offsets, since Delta may delete the commits before it. They are from before the claim,
        so the table is claimed again if another archive wrote in between.

        :raises Overtaken: if other archives claim it all the time.
        :raises PipelineError: also if the table is marked as `RETYPING`, and the claim is not such a mark.
        """
        rows = self.rows
        if rows is None:
            return
        for _ in range(_CLAIMS):
            generation = self._next_generation(topic_id)
            # This comes later: a mark that is not there yet would take the generation.
            before = self._unmarked(topic, checkpoint)
            claim = replace(
                before,
                topic=topic,
                topic_id=topic_id,
                generation=generation,
                batch_id=-1,
                checkpoint=checkpoint,
                is_claim=True,
            )
            try:
                self._write(self._nothing(rows.schema), claim)
            except Overtaken:
                continue
            found = self._read()
            if found.checkpoint == checkpoint and found.offsets == before.offsets:
                self.proven = found
                return
        raise self._overtaken()

    def append(self, rows: DataFrame, proven: Proven) -> int:
        """Add the rows of a batch, with the proof of the table after it; returns their number.

        :param proven: its generation and batch number are replaced by the table's next ones.
        :raises Overtaken: if another archive claimed the table; this one then writes nothing.
        :raises PipelineError:
        """
        proven = self.next_proof(proven)
        self._write(rows, proven)
        self._exists = True
        return self._written(proven)

    def next_proof(self, proven: Proven) -> Proven:
        """The proof with the numbers of the table's next batch."""
        if self.proven is None:
            return replace(proven, generation=1, batch_id=0)
        return replace(proven, generation=self.proven.generation, batch_id=self.proven.batch_id + 1)

    def replace(self, rows: DataFrame, proven: Proven) -> int:
        """Replace all rows and columns in one commit, which begins the next generation; returns the rows' number.

        :raises Overtaken: if another archive claimed the table; its rows then stay.
        :raises PipelineError:
        """
        assert self.proven is not None
        proven = replace(proven, generation=self.proven.generation + 1, batch_id=-1)
        self._write(rows, proven, replaces=True)
        return self._written(proven)

    def reset(self, proven: Proven) -> None:
        """Replace the proof by a lower one, since the topic has lost the rest; the rows stay.

        :raises PipelineError:
        """
        rows = self.rows
        if rows is None:
            return
        proven = replace(proven, generation=self._next_generation(proven.topic_id), batch_id=-1, checkpoint="")
        self._write(self._nothing(rows.schema), proven)
        self.proven = proven

    def _unmarked(self, topic: str, checkpoint: str) -> Proven:
        """The table's proof now.

        :raises PipelineError: if a retype has marked the table.
        """
        found = self._read()
        if found.checkpoint == RETYPING != checkpoint:
            raise PipelineError(
                f"topic {topic}: 'korvet pipeline retype' runs, or was cut off; wait for its end, or run it again"
            )
        return found

    def _read(self) -> Proven:
        """The proof of the table, which exists."""
        found = read_proven(self._spark, self.path)
        if found is None:
            raise PipelineError(f"{self.path}: the table was deleted; end the archive, and start it again")
        return found

    def _next_generation(self, topic_id: str) -> int:
        last = last_transaction(self._spark, self.path, APPLICATION + topic_id) or 0
        return (last >> GENERATION_BITS) + 1

    def _written(self, proven: Proven) -> int:
        """The number of the rows that were just written with this proof. Delta skips them if another has claimed."""
        found = read_proven(self._spark, self.path)
        if found != proven:
            raise self._overtaken()
        self.proven = found
        return found.rows

    def _write(self, rows: DataFrame, proven: Proven, *, replaces: bool = False) -> None:
        if self._exists and latest_version(self._spark, self.path) is None:
            raise PipelineError(f"{self.path}: the table was deleted; end the archive, and start it again")
        if ARCHIVED not in rows.columns:
            # Rows that the lake has already keep their day.
            rows = rows.withColumn(ARCHIVED, F.lit(datetime.now(UTC).date()))
        writer = rows.write.format("delta").option("compression", COMPRESSION)
        if not self._exists:
            # A table that another archive made meanwhile holds batches that this one does not know.
            writer = writer.mode("error").partitionBy(*self._partitioned_by).options(**_PROPERTIES, **self._properties)
        elif replaces:
            writer = writer.mode("overwrite").partitionBy(*self._partitioned_by).option("overwriteSchema", "true")
        else:
            # It stays partitioned as it was made.
            writer = writer.mode("append").option("mergeSchema", "true")
        writer = writer.option("txnAppId", APPLICATION + proven.topic_id)
        writer = writer.option("txnVersion", proven.transaction_version).option("userMetadata", proven.to_json())
        for left in reversed(range(_TRIES)):
            try:
                return writer.save(self.path)
            except (Py4JJavaError, PySparkException) as error:
                if not any(each in str(error) for each in (_OTHERS if self._exists else _MADE_BY_OTHERS)):
                    raise
                found = read_proven(self._spark, self.path)
                # It may be this one: an object store refuses a commit that it has already, if its answer was lost.
                if found == proven:
                    return
                # Somebody set a property, or maintenance keeps the proof.
                if not (left and _METADATA in str(error) and found == self.proven):
                    raise self._overtaken() from None

    def _nothing(self, columns: StructType) -> DataFrame:
        """A frame without rows. PySpark's own way to make one starts Python processes."""
        session: Any = self._spark._jsparkSession
        jvm: Any = self._spark._jvm
        empty = session.createDataFrame(jvm.java.util.ArrayList(), session.parseDataType(columns.json()))
        return DataFrame(empty, self._spark)

    def _overtaken(self) -> Overtaken:
        return Overtaken(
            f"{self.path}: another archive writes to this table, or a retype does; let only one of them run"
        )


def write_failure(path: str, error: Exception) -> PipelineError:
    """Why a table could not be written, in a sentence; of the kind of `failure`."""
    known = failure(error)
    return known if known is error else type(known)(f"{path}: it cannot be written: {known}")
