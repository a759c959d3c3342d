"""Groups as Redis shows them, sampled all the time while a fault acts."""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final

import redis

from scripts.chaosrun.checks import GroupState
from scripts.chaosrun.journal import now_us

EVERY_S: Final = 0.1

Sample = tuple[int, Mapping[str, GroupState]]  # when, in µs since 1970, and how the groups were then


@contextmanager
def watched(look: Callable[[], Mapping[str, GroupState]]) -> Iterator[list[Sample]]:
    """Samples of `look`'s results, while the context lasts; none while Redis does not answer."""
    samples: list[Sample] = []
    stopped = threading.Event()

    def watch() -> None:
        while not stopped.wait(EVERY_S):
            try:
                samples.append((now_us(), look()))
            except redis.RedisError:
                continue

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield samples
    finally:
        stopped.set()
        thread.join()
