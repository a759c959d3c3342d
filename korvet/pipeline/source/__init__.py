"""Topics as a PySpark data source: the equal of Spark's ``format("kafka")`` in Python, without a jar.

Option names, columns and the JSON of offsets are those of Spark's Kafka source. Spark finds the source by itself if
korvet is installed in the Python of its workers; else call ``spark.dataSource.register(KorvetDataSource)``.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from pyspark import SparkContext
from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from korvet.pipeline.errors import PipelineError
from korvet.pipeline.source.options import batch_options, include_headers, stream_options
from korvet.pipeline.source.readers import KorvetReader, KorvetStreamReader
from korvet.pipeline.source.rows import row_schema

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceStreamWriter, DataSourceWriter


class KorvetDataSource(DataSource):
    """``format("korvet")``. Methods import the sink late, since it imports the client's settings from this package."""

    @classmethod
    def name(cls) -> str:
        """The word for ``format``. ``register`` reads it, and then notes the Python in which the source will run."""
        _run_in_this_python()
        return "korvet"

    def schema(self) -> StructType:
        """The columns that the source reads."""
        return row_schema(include_headers=include_headers(self.options))

    def reader(self, schema: StructType) -> KorvetReader:
        """
        :raises PipelineError: for options that cannot be followed, or another schema.
        """
        self._check(schema)
        return KorvetReader(batch_options(self.options))

    def streamReader(self, schema: StructType) -> KorvetStreamReader:
        """
        :raises PipelineError: for options that cannot be followed, or another schema.
        """
        self._check(schema)
        return KorvetStreamReader(stream_options(self.options))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from korvet.pipeline.sink import batch_writer

        return batch_writer(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from korvet.pipeline.sink import stream_writer

        return stream_writer(self.options, schema, overwrite)

    def _check(self, schema: StructType) -> None:
        if schema != self.schema():
            raise PipelineError("The schema of format('korvet') is fixed; leave out the call of schema()")


def _run_in_this_python() -> None:
    """Let a session on this machine start workers of this Python instead of the first ``python3`` in the path.

    That one has no korvet if a virtual environment is not activated. A Python that the user chose stays.
    """
    context = SparkContext._active_spark_context
    if context is not None and "PYSPARK_PYTHON" not in os.environ and str(context.master).startswith("local"):
        context.pythonExec = sys.executable
