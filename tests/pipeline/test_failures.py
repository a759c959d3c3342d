"""A user gets the one sentence of Spark's errors that tells the event."""

from __future__ import annotations

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import Row

from korvet.pipeline.errors import PipelineError, ProcessDied, UnknownTopic
from korvet.pipeline.failures import failure

IN_A_TASK = """Job aborted due to stage failure: Task 0 in stage 1.0 failed 1 times, most recent failure: Lost task 0.0
org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "/x/korvet/pipeline/source/fetch.py", line 1, in read
    raise UnknownTopic("x")
korvet.pipeline.errors.UnknownTopic: topic orders: it does not exist at 127.0.0.1:9092

	at org.apache.spark.api.python.BasePythonRunner.x(PythonRunner.scala:1)
"""
IN_JAVA = """An error occurred while calling o53.save.
: org.apache.spark.SparkException: Job aborted.
	at org.apache.spark.sql.X.y(Z.scala:1)
Caused by: java.io.IOException: No space left on device
	... 21 more
"""
IN_PYTHON = """[PYTHON_STREAMING] failed
Traceback (most recent call last):
  File "x.py", line 1, in y
    1 / 0
ZeroDivisionError: division by zero
"""
OF_PYSPARK = """Traceback (most recent call last):
  File "x.py", line 1, in y
    z()
pyspark.errors.exceptions.captured.AnalysisException: [PATH_NOT_FOUND] it is away
"""
OF_A_LIBRARY = """An exception was thrown from the Python worker:
  Traceback (most recent call last):
    File "x.py", line 1, in y
      continue
      ^^^^^^^^
    File "z.pxi", line 92, in pyarrow.lib.check_status
  pyarrow.lib.ArrowInvalid: overflow
"""
OF_A_LIBRARY_IN_A_TASK = """Job aborted due to stage failure: Task 0 in stage 1.0 failed 1 times: Lost task 0.0
org.apache.spark.api.python.PythonException: [PYTHON_EXCEPTION] An exception was thrown from the Python worker: \
Traceback (most recent call last):
  File "z.pxi", line 92, in pyarrow.lib.check_status
pyarrow.lib.ArrowInvalid: overflow

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "x.py", line 1, in y
ValueError: it cannot be read
 SQLSTATE: 38000
	at org.apache.spark.api.python.BasePythonRunner.x(PythonRunner.scala:1)
Caused by: org.apache.spark.api.python.PythonException: [PYTHON_EXCEPTION] An exception was thrown: Traceback (most \
recent call last):
  File "z.pxi", line 92, in pyarrow.lib.check_status
pyarrow.lib.ArrowInvalid: overflow
"""
WRONG_PYTHON = """Job aborted due to stage failure: Task 0 in stage 0.0 failed 1 times: Lost task 0.0 in stage 0.0
org.apache.spark.SparkException:
Error from python worker:
  Traceback (most recent call last):
  ModuleNotFoundError: No module named 'pyspark'
PYTHONPATH was:
  /x/pyspark.zip:/x/py4j.zip
org.apache.spark.SparkException: EOFException occurred while reading the port number from pyspark.daemon's stdout.
	at org.apache.spark.errors.SparkCoreErrors$.x(SparkCoreErrors.scala:55)
"""
A_SHORT_FILE = """An error occurred while calling o53.save.
: org.apache.spark.SparkException: Job aborted.
Caused by: java.io.EOFException: Reached the end of stream with 12 bytes left to read
	at org.apache.parquet.io.DelegatingSeekableInputStream.readFully(DelegatingSeekableInputStream.java:104)
"""
WORDS_OF_A_TRACEBACK = "a value held Traceback (most recent call last): and more\nend\n"
OUT_OF_MEMORY = (
    "An error occurred while calling o5.collect.\n: java.lang.OutOfMemoryError: Java heap space\n\tat x.y(Z)\n"
)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (IN_A_TASK, "topic orders: it does not exist at 127.0.0.1:9092"),
        (IN_JAVA, "Spark: Job aborted: No space left on device"),
        (IN_PYTHON, "Spark: ZeroDivisionError: division by zero"),
        (OF_PYSPARK, "Spark: [PATH_NOT_FOUND] it is away"),
        (OF_A_LIBRARY, "Spark: pyarrow.lib.ArrowInvalid: overflow"),
        (OF_A_LIBRARY_IN_A_TASK, "Spark: pyarrow.lib.ArrowInvalid: overflow"),
        (
            WRONG_PYTHON,
            "the Python of Spark's tasks cannot start: No module named 'pyspark'; have PYSPARK_PYTHON, or else the "
            "first python3 in the path, be one that has korvet",
        ),
        (A_SHORT_FILE, "Spark: Job aborted: Reached the end of stream with 12 bytes left to read"),
        (WORDS_OF_A_TRACEBACK, "Spark: a value held Traceback (most recent call last): and more"),
        (OUT_OF_MEMORY, "Spark ran out of memory; give it more, for example with --conf spark.driver.memory=4g"),
        ("", "Spark: RuntimeError"),
    ],
)
def test_error_of_spark_becomes_a_sentence(text: str, sentence: str) -> None:
    assert str(failure(RuntimeError(text))) == sentence


NO_MEMORY = WRONG_PYTHON.replace("ModuleNotFoundError: No module named 'pyspark'", "MemoryError")
SILENT = (
    "EOFException occurred while reading the port number from pyspark.daemon's stdout and terminated with code: 137."
)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("Python worker exited unexpectedly (crashed)", "a Python process of a task of Spark died"),
        (SILENT, "the process that starts Python for tasks of Spark died"),
        (NO_MEMORY, "the process that starts Python for tasks of Spark died"),
        ("Stream closed", "a Python process of a query of Spark died"),
        ("Caused by: java.io.EOFException\n\tat java.base/x.y(Z)", "a Python process of a query of Spark died"),
        ("ExecutorLostFailure (executor 3 exited caused by", "executor 3 of Spark died"),
        ("Python worker failed to connect back", "Spark's Python processes do not start within 10 s"),
    ],
)
def test_death_of_a_process_is_one_that_may_pass(text: str, what: str) -> None:
    error = failure(RuntimeError(text))
    assert isinstance(error, ProcessDied)
    assert str(error).startswith(what)


def test_error_of_the_pipeline_stays_the_same() -> None:
    error = UnknownTopic("topic x: it does not exist")
    assert failure(error) is error


def test_error_of_the_pipeline_within_another_one_is_found() -> None:
    try:
        try:
            raise PipelineError("lake x: it is away")
        except PipelineError as inner:
            raise RuntimeError("the query ended") from inner
    except RuntimeError as error:
        assert str(failure(error)) == "lake x: it is away"


def refuse(row: Row) -> None:
    raise PipelineError("record 7: it is not as it must be")


def refuse_batch(batch: DataFrame, batch_id: int) -> None:
    raise PipelineError("batch: it is not as it must be")


@pytest.mark.scene
def test_error_of_a_task_keeps_its_text(spark: SparkSession) -> None:
    with pytest.raises(Exception) as caught:
        spark.range(1).foreach(refuse)
    assert str(failure(caught.value)) == "record 7: it is not as it must be"


def test_error_of_a_batch_function_keeps_its_text(spark: SparkSession) -> None:
    rows = spark.readStream.format("rate").load()
    query = rows.writeStream.foreachBatch(refuse_batch).trigger(availableNow=True).start()
    with pytest.raises(Exception) as caught:
        query.awaitTermination(240)
    assert str(failure(caught.value)) == "batch: it is not as it must be"


def test_error_of_spark_itself_is_one_line(spark: SparkSession) -> None:
    with pytest.raises(AnalysisException) as caught:
        spark.read.parquet("/nowhere/at/all")
    told = str(failure(caught.value))
    assert told.startswith("Spark: [PATH_NOT_FOUND] Path does not exist: file:/nowhere/at/all")
    assert "\n" not in told
