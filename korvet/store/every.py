"""Repeated steps: periodic, or whenever one is due."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

import anyio
import structlog

from korvet.errors import KorvetError

log = structlog.get_logger()

RETRY_S: Final = 1.0
_WITHOUT_FIGURES: Final = str.maketrans("", "", "0123456789")


@dataclass(slots=True)
class Steps:
    """The number of steps of one kind, of failures while Redis was usable, and the total time."""

    taken: int = 0
    failed: int = 0
    seconds: float = 0.0


class Sweeps(defaultdict[str, Steps]):
    """The steps of background work, by its name."""

    def __init__(self) -> None:
        super().__init__(Steps)


def kind_of(error: Exception) -> str:
    """An error's text without digits: errors that differ only in ids, times or ports are of one kind."""
    return str(error).translate(_WITHOUT_FIGURES)


def _never(_: Exception) -> bool:
    return False


async def every(
    interval_s: float | Callable[[], float],
    step: Callable[[], Awaitable[None]],
    complaint: str,
    *,
    at_once: bool = False,
    sleep: Callable[[float], Awaitable[None]] = anyio.sleep,
    has_reported: Callable[[Exception], bool] = _never,
    steps: Steps | None = None,
) -> None:
    """Repeat a step until cancelled, with a pause before each.

    A step that raises a KorvetError is retried, a second later at the soonest. The log reports each kind of error once,
    until a step succeeds. Any other exception ends the loop.

    :param interval_s: the pause, or a function that returns the next one.
    :param complaint: the log line about a failed step.
    :param at_once: take the first step without a pause.
    :param sleep: the function that pauses; it may pause longer (`korvet.store.activity`).
    :param has_reported: true for an error that the log already reports, such as an outage of Redis.
    :param steps: counts the steps; one that an outage ended does not count as failed.
    """
    logged: set[str] = set()
    steps = steps or Steps()
    pause_s = 0.0 if at_once else _pause(interval_s)
    while True:
        await sleep(pause_s)
        began = anyio.current_time()
        try:
            await step()
        except KorvetError as error:
            if not has_reported(error):
                steps.failed += 1
                if (kind := kind_of(error)) not in logged:
                    logged.add(kind)
                    log.warning(complaint, reason=str(error))
            pause_s = max(RETRY_S, _pause(interval_s))
        else:
            logged.clear()
            pause_s = _pause(interval_s)
        steps.taken += 1
        steps.seconds += anyio.current_time() - began


def _pause(interval_s: float | Callable[[], float]) -> float:
    return interval_s() if callable(interval_s) else interval_s


async def whenever(due: Callable[[], Awaitable[None]], step: Callable[[], Awaitable[None]], interval_s: float) -> None:
    """Take a step whenever one is due, until cancelled: at most once an interval, for at most half of the time.

    :param due: returns when the next step is due.
    """
    while True:
        await due()
        began = anyio.current_time()
        await step()
        await anyio.sleep(max(interval_s, anyio.current_time() - began))
