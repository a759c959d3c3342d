"""The rows of a Delta table, read by Delta's Kernel.

The Kernel is Delta's own reader for programs without Spark. It reads a log and some rows in a tenth of a second, where
Spark plans for two. It knows mapped columns, checkpoints and deletion vectors as Spark's reader does.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from pyspark.sql import Row, SparkSession

from korvet.pipeline.lake.files import java_class

_KERNEL: Final = "io.delta.kernel"
_EPOCH: Final = datetime.datetime(1970, 1, 1)
_Reader = Callable[[Any, int], Any]
_GETTERS: Final[Mapping[str, _Reader]] = {
    "BinaryType": lambda column, at: column.getBinary(at),
    "BooleanType": lambda column, at: column.getBoolean(at),
    "DateType": lambda column, at: (_EPOCH + datetime.timedelta(days=column.getInt(at))).date(),
    "DecimalType": lambda column, at: column.getDecimal(at),
    "DoubleType": lambda column, at: column.getDouble(at),
    "IntegerType": lambda column, at: column.getInt(at),
    "LongType": lambda column, at: column.getLong(at),
    "StringType": lambda column, at: column.getString(at),
    "TimestampType": lambda column, at: _EPOCH + datetime.timedelta(microseconds=column.getLong(at)),
}


def delta_rows(spark: SparkSession, path: str) -> list[Row]:
    """All rows as the table is now, in any order; timestamps are in UTC, without a time zone.

    :param spark: its Java virtual machine has the Kernel.
    """
    hadoop = spark._jsc.hadoopConfiguration()
    engine = java_class(spark, f"{_KERNEL}.defaults.engine.DefaultEngine").create(hadoop)
    table = java_class(spark, f"{_KERNEL}.Table").forPath(engine, path)
    scan = table.getLatestSnapshot(engine).getScanBuilder().build()
    state = scan.getScanState(engine)
    found = list[Row]()
    for files in _each(scan.getScanFiles(engine)):
        for file in _each(files.getRows()):
            for batch in _batches(spark, engine, state, file):
                found += _rows(batch)
    return found


def _batches(spark: SparkSession, engine: Any, state: Any, file: Any) -> Iterator[Any]:
    """A file's columns, with those of the partition and without deleted rows."""
    one = java_class(spark, f"{_KERNEL}.internal.util.Utils").singletonCloseableIterator
    schema = java_class(spark, f"{_KERNEL}.internal.data.ScanStateRow").getPhysicalDataReadSchema(state)
    status = java_class(spark, f"{_KERNEL}.internal.InternalScanFileUtils").getAddFileStatus(file)
    no_filter = java_class(spark, "java.util.Optional").empty()
    logical = java_class(spark, f"{_KERNEL}.Scan").transformPhysicalData
    for read in _each(engine.getParquetHandler().readParquetFiles(one(status), schema, no_filter)):
        yield from _each(logical(engine, state, file, one(read.getData())))


def _rows(batch: Any) -> Iterator[Row]:
    data, selection = batch.getData(), batch.getSelectionVector().orElse(None)
    schema = data.getSchema()
    row, readers = Row(*schema.fieldNames()), _member_readers(schema)
    columns = [data.getColumnVector(number) for number in range(len(readers))]
    for at in range(data.getSize()):
        if selection is None or selection.getBoolean(at):
            yield row(*(read(column, at) for read, column in zip(readers, columns, strict=True)))


def _member_readers(schema: Any) -> list[_Reader]:
    return [_reader(field.getDataType()) for field in schema.fields()]


def _reader(kind: Any) -> _Reader:
    """A function that reads a column's value in a row. Each call of Java takes a millisecond: types are asked once."""
    name = kind.getClass().getSimpleName()
    read = _nested_reader(name, kind) or _GETTERS[name]
    return lambda column, at: None if column.isNullAt(at) else read(column, at)


def _nested_reader(name: str, kind: Any) -> _Reader | None:
    if name == "StructType":
        row, members = Row(*kind.fieldNames()), _member_readers(kind)
        return lambda column, at: row(*(read(column.getChild(number), at) for number, read in enumerate(members)))
    if name == "ArrayType":
        element = _reader(kind.getElementType())
        return lambda column, at: _elements(column.getArray(at), element)
    return None


def _elements(array: Any, read: _Reader) -> list[Any]:
    elements = array.getElements()
    return [read(elements, number) for number in range(array.getSize())]


def _each(iterator: Any) -> Iterator[Any]:
    try:
        while iterator.hasNext():
            yield iterator.next()
    finally:
        iterator.close()
