"""How a process is asked to stop, and how it says why it could not start."""

from __future__ import annotations

import signal

import anyio

from korvet.errors import KorvetError


async def stop_on_signals(stop: anyio.Event, serving: anyio.Event, scope: anyio.CancelScope) -> None:
    """The first SIGTERM or SIGINT sets ``stop``, so that what is in flight is answered.

    Before ``serving`` is set there is nothing to answer, and a second signal is impatient: then the scope is cancelled.
    """
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async for _ in signals:
            if stop.is_set() or not serving.is_set():
                scope.cancel()
            stop.set()


def first_korvet_error(group: BaseExceptionGroup[BaseException]) -> KorvetError | None:
    """The error to show to the user, where a group holds nothing but korvet's own."""
    ours, others = group.split(KorvetError)
    if others is not None or ours is None:
        return None
    error: BaseException = ours
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error if isinstance(error, KorvetError) else None
