"""A table of the lake over Delta's log."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from korvet.pipeline.errors import PipelineError
from korvet.pipeline.failures import SPARK_ERRORS, failure
from korvet.pipeline.lake.files import newest_snapshot
from korvet.pipeline.lake.layout import ARCHIVED
from korvet.pipeline.lake.log_store import keep_one_writer
from korvet.pipeline.lake.proofs import read_proven, snapshot
from korvet.pipeline.plan.proofs import APPLICATION, Proven
from korvet.pipeline.plan.table import Conflict, How, ProvenTable

COMPRESSION: Final = "zstd"
# Pages of this version hold growing numbers, as offsets and times are, as differences.
_PROPERTIES: Final = {"delta.parquet.format.version": "2.12.0"}
# Delta's errors for the later one of two commits, and of two that make a table.
CONFLICTS: Final = ("DELTA_CONCURRENT", "DELTA_METADATA_CHANGED")
_MADE_BY_OTHERS: Final = (*CONFLICTS, "DELTA_PATH_EXISTS", "DELTA_PROTOCOL_CHANGED")


class Table(ProvenTable[DataFrame]):
    """One table, as one archive writes it.

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
        self._spark = spark
        self._properties, self._partitioned_by = dict(properties), partitioned_by
        super().__init__(path)

    @property
    def id(self) -> str:
        """Delta's id of the table; a recreated table has another one."""
        return str(newest_snapshot(self._spark, self.path).metadata().id())

    @property
    def rows(self) -> DataFrame | None:
        """The table's rows; None if there is no table yet."""
        return self._spark.read.format("delta").load(self.path) if self._exists else None

    def begin(self, columns: StructType, proven: Proven) -> None:
        """Make the table without rows, with a proof that says where it begins.

        :raises PipelineError:
        """
        self._write(self._nothing(columns), proven)
        self.proven, self._exists = self._read(), True

    def _read(self) -> Proven | None:
        return read_proven(self._spark, self.path)

    def _is_there(self) -> bool:
        return snapshot(self._spark, self.path) is not None

    def _last_transaction(self, application: str) -> int | None:
        seen = snapshot(self._spark, self.path)
        return None if seen is None else seen.transactions.get(application)

    def _save(self, rows: DataFrame | None, proven: Proven, how: How) -> None:
        if rows is None:
            assert self.rows is not None
            rows = self._nothing(self.rows.schema)
        if ARCHIVED not in rows.columns:
            # Rows that the lake has already keep their day.
            rows = rows.withColumn(ARCHIVED, F.lit(datetime.now(UTC).date()))
        writer = rows.write.format("delta").option("compression", COMPRESSION)
        if how == "make":
            # A table that another archive made meanwhile holds batches that this one does not know.
            writer = writer.mode("error").partitionBy(*self._partitioned_by).options(**_PROPERTIES, **self._properties)
        elif how == "replace":
            writer = writer.mode("overwrite").partitionBy(*self._partitioned_by).option("overwriteSchema", "true")
        else:
            # It stays partitioned as it was made.
            writer = writer.mode("append").option("mergeSchema", "true")
        writer = writer.option("txnAppId", APPLICATION + proven.topic_id)
        writer = writer.option("txnVersion", proven.transaction_version).option("userMetadata", proven.to_json())
        with conflicts(_MADE_BY_OTHERS if how == "make" else CONFLICTS):
            writer.save(self.path)

    def _nothing(self, columns: StructType) -> DataFrame:
        """A frame without rows. PySpark's own way to make one starts Python processes."""
        session: Any = self._spark._jsparkSession
        jvm: Any = self._spark._jvm
        empty = session.createDataFrame(jvm.java.util.ArrayList(), session.parseDataType(columns.json()))
        return DataFrame(empty, self._spark)


@contextmanager
def conflicts(names: tuple[str, ...] = CONFLICTS) -> Iterator[None]:
    """Raise Delta's errors of these names as a `Conflict`."""
    try:
        yield
    except SPARK_ERRORS as error:
        if any(name in str(error) for name in names):
            raise Conflict from error
        raise


def write_failure(path: str, error: Exception) -> PipelineError:
    """Why a table could not be written, in a sentence; of the kind of `failure`."""
    known = failure(error)
    return known if known is error else type(known)(f"{path}: it cannot be written: {known}")
