"""Of what Spark throws, the one sentence that a user needs.

What korvet raises on an executor, in a source, a sink or a batch's function reaches the driver as text within errors of
Python's bridge to Java, several deep; what Spark raises itself opens with its message, before the stack of the JVM.
"""

from __future__ import annotations

import re
from typing import Final

from korvet.pipeline.errors import PipelineError

# A line that Python's traceback ends with: the error's full name and its text.
_OURS: Final = re.compile(r"^\s*(?:[\w.$]+: )*korvet\.[\w.]+: (?P<text>\S.*)$", re.MULTILINE)
_CAUSE: Final = re.compile(r"^Caused by: (?:[\w.$]+: )?(?P<text>\S.*)$", re.MULTILINE)
_CLASS: Final = re.compile(r"^(?:[a-z][\w$]*\.)+[A-Z][\w$]*(?:: |$)")
_MEMORY: Final = re.compile(r"java\.lang\.OutOfMemoryError\S*")
_MAX_CHARACTERS: Final = 500


def failure(error: BaseException) -> PipelineError:
    """The error as one of korvet's own: itself, the one of korvet's that it wraps, or Spark's message in a line."""
    if isinstance(error, PipelineError):
        return error
    text = _text(error)
    ours = _OURS.search(text)
    if ours is not None:
        return PipelineError(ours["text"].strip())
    if _MEMORY.search(text):
        return PipelineError("Spark ran out of memory; give it more, for example with --conf spark.driver.memory=4g")
    return PipelineError(f"Spark: {_first_line(text)}")


def _text(error: BaseException) -> str:
    """All that the error tells, its causes in Python and in Java included."""
    parts: list[str] = []
    seen: set[int] = set()
    at: BaseException | None = error
    while at is not None and id(at) not in seen:
        seen.add(id(at))
        parts.append(str(at) or type(at).__name__)
        at = at.__cause__ or at.__context__
    return "\n".join(parts)


def _first_line(text: str) -> str:
    """The first line that says something: of a Python traceback its last one, else the innermost cause, if told."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    told = lines[0] if lines else "it failed and gave no reason"
    if "Traceback (most recent call last)" in text:
        told = _end_of_traceback(lines) or told
    elif told.startswith("An error occurred while calling"):
        causes = _CAUSE.findall(text)
        told = causes[-1] if causes else (lines[1] if len(lines) > 1 else told)
    return _CLASS.sub("", told)[:_MAX_CHARACTERS] or told


def _end_of_traceback(lines: list[str]) -> str | None:
    begun = False
    for line in lines:
        begun = begun or line.startswith("Traceback (most recent call last)")
        if begun and re.match(r"[A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Exit)\b", line):
            return line
    return None
