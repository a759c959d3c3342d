"""Streaming queries of tests on a busy machine."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from korvet.pipeline.failures import failure

Result = TypeVar("Result")
TRIES = 3
TOO_LATE = "do not start within 10 s"


def tried_again(attempt: Callable[[], Result]) -> Result:
    """The result of an attempt that starts a query, or of a later one, which goes on from the query's checkpoint.

    Spark gives each Python process of a query ten seconds to start, which no setting changes.
    """
    for _ in range(TRIES - 1):
        try:
            return attempt()
        except Exception as error:
            if TOO_LATE not in str(failure(error)):
                raise
    return attempt()
