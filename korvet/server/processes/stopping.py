"""Signals that stop a process or make it reload its settings, and the error that kept it from starting."""

from __future__ import annotations

import signal
from collections.abc import Awaitable, Callable

import anyio
import structlog

from korvet.errors import KorvetError

log = structlog.get_logger()


async def stop_on_signals(
    stop: anyio.Event,
    serving: anyio.Event,
    scope: anyio.CancelScope,
    hangup: Callable[[], Awaitable[None]] | None = None,
) -> None:
    """Set ``stop`` at the first SIGTERM or SIGINT, so that requests in flight are answered.

    A second signal cancels the scope. So does the first one before ``serving`` is set: no request waits for an answer.

    :param hangup: called at SIGHUP. Without it, the process ignores SIGHUP and logs no signals.
    """
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, signal.SIGHUP) as signals:
        async for number in signals:
            if number != signal.SIGHUP:
                _stop(number, stop, serving, scope, is_logged=hangup is not None)
            elif hangup is not None and serving.is_set() and not stop.is_set():
                await hangup()
            elif hangup is not None:
                log.info("signal ignored: korvet is not serving", signal="SIGHUP")


def _stop(number: int, stop: anyio.Event, serving: anyio.Event, scope: anyio.CancelScope, *, is_logged: bool) -> None:
    at_once = stop.is_set() or not serving.is_set()
    if is_logged:
        event = "stopping at once" if at_once else "stopping; a second signal ends at once"
        log.info(event, signal=signal.Signals(number).name)
    if at_once:
        scope.cancel()
    stop.set()


def first_korvet_error(group: BaseExceptionGroup[BaseException]) -> KorvetError | None:
    """The first error of a group, to show to the user; None if the group holds others than KorvetErrors."""
    ours, others = group.split(KorvetError)
    if others is not None or ours is None:
        return None
    error: BaseException = ours
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error if isinstance(error, KorvetError) else None
