"""The one sentence that a user needs of an error that Spark throws.

Korvet raises errors on executors, in a source, a sink or a batch's function. They reach the driver as text, several
layers deep in errors of Python's bridge to Java. Spark's own errors begin with their message, before the JVM's stack.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from korvet.pipeline.errors import BrokerUnreachable, PipelineError, ProcessDied, UnknownTopic

SPARK_ERRORS: Final = (Py4JJavaError, PySparkException)
"""The errors of work that Spark was given; `failure` has the sentence."""
# The last line of a Python traceback: the error's full name and its text.
_OURS: Final = re.compile(r"^\s*(?:[\w.$]+: )*korvet\.[\w.]+: (?P<text>\S.*)$", re.MULTILINE)
_CAUSE: Final = re.compile(r"^Caused by: (\S.*)$", re.MULTILINE)
_CALLING: Final = "An error occurred while calling"
_CLASS: Final = re.compile(r"^(?:[a-z][\w$]*\.)+[A-Z][\w$]*(?:: |$)")
# The words of Kafka's Java client, and so of Spark's own connector.
_NO_TOPIC: Final = re.compile(r"UnknownTopicOrPartitionException|does not host this topic-partition")
_NO_BROKER: Final = re.compile(r"Timed out waiting for a node assignment")
_MEMORY: Final = re.compile(r"java\.lang\.OutOfMemoryError\S*")
# The wrong Python's output at its start, before Spark names its path.
_WRONG_PYTHON: Final = re.compile(
    r"Error from python worker:.*?(?P<said>No module named \S+).*?PYTHONPATH was:", re.DOTALL
)
# Spark's words for a process that is gone, and what it was.
_DIED: Final = (
    (re.compile(r"Python worker exited unexpectedly"), "a Python process of a task"),
    (re.compile(r"reading the port number from \S*daemon's stdout"), "the process that starts Python for tasks"),
    # The error of a file that is too short has a text.
    (re.compile(r"Stream closed|java\.io\.EOFException(?!: )"), "a Python process of a query"),
    (re.compile(r"ExecutorLostFailure \((?P<what>executor \S+)"), "{what}"),
)
# Spark gives a Python process ten seconds to start, which no setting changes.
_BUSY: Final = "Python worker failed to connect back"
_TRACEBACK: Final = re.compile(r"(?P<before>.*?)Traceback \(most recent call last\):\s*$")
_ERROR: Final = re.compile(r"[A-Za-z_][\w.]*(?:: |$)")
_OF_SPARK: Final = re.compile(r"^(?:pyspark|py4j)\.[\w.]+(?:: |$)")
_MAX_CHARACTERS: Final = 500


def failure(error: BaseException) -> PipelineError:
    """The error as one of korvet's own: itself, the korvet error inside it, or Spark's message in a line."""
    chain = list(_chain(error))
    for each in chain:
        if isinstance(each, PipelineError):
            return each
    text = "\n".join(str(each) or type(each).__name__ for each in chain)
    ours = _OURS.search(text)
    if ours is not None:
        return PipelineError(ours["text"].strip())
    if _NO_TOPIC.search(text):
        return UnknownTopic("the topic does not exist, or not any more")
    if _NO_BROKER.search(text):
        return BrokerUnreachable("no broker answers; see whether it is up, or name another")
    if _MEMORY.search(text):
        return PipelineError("Spark ran out of memory; give it more, for example with --conf spark.driver.memory=4g")
    wrong_python = _WRONG_PYTHON.search(text)
    if wrong_python is not None:
        return PipelineError(
            f"the Python of Spark's tasks cannot start: {wrong_python['said']}; have PYSPARK_PYTHON, or else the first "
            "python3 in the path, be one that has korvet"
        )
    return _death(text) or PipelineError(f"Spark: {_first_line(text)}")


def _death(text: str) -> ProcessDied | None:
    """The process that died, if its death is the reason."""
    if _BUSY in text:
        return ProcessDied("Spark's Python processes do not start within 10 s; see what else keeps the machine busy")
    for words, what in _DIED:
        found = words.search(text)
        if found is not None:
            return ProcessDied(
                f"{what.format(**found.groupdict())} of Spark died; the kernel kills processes if memory is short "
                "(see dmesg): give the machine more of it, or let fewer tasks run at once, as with --master local[1]"
            )
    return None


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The error, and its causes."""
    at: BaseException | None = error
    while at is not None:
        yield at
        at = at.__cause__ or at.__context__


def _first_line(text: str) -> str:
    """Spark's message, or the error of a Python traceback in it; with the innermost cause if Java names one."""
    causes = [_without_class(cause) for cause in _CAUSE.findall(text) if not _TRACEBACK.match(cause)]
    summary = _end_of_traceback(text) or _message(text)
    if causes and causes[-1] not in summary:
        summary = f"{summary.rstrip('.')}: {causes[-1]}"
    return summary[:_MAX_CHARACTERS]


def _message(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if lines and lines[0].startswith(_CALLING):
        lines = [line.lstrip(": ") for line in lines[1:]]
    return _without_class(lines[0]) if lines else "it failed and gave no reason"


def _without_class(line: str) -> str:
    return _CLASS.sub("", line) or line


def _end_of_traceback(text: str) -> str | None:
    """The error of the first traceback, which causes the others; None without a traceback.

    It stands in the column of the traceback, or in the first one if that begins within a line. Frames are indented.
    """
    lines = iter(text.splitlines())
    begun = next((found for line in lines if (found := _TRACEBACK.match(line))), None)
    column = len(begun["before"]) if begun is not None and not begun["before"].strip() else 0
    ends = (line[column:].strip() for line in lines if not line[:column].strip() and _ERROR.match(line[column:]))
    error = next(ends, None)
    return error and (_OF_SPARK.sub("", error) or error)
