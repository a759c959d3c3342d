"""What a test's process holds in memory."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

MEGABYTE: Final = 1 << 20


@contextmanager
def collector_stopped() -> Iterator[None]:
    """No collection of cycles in the block, as in a front-end, where one seldom comes."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@contextmanager
def traced_memory() -> Iterator[Callable[[], int]]:
    """A function that tells the bytes that are held since the block began."""
    tracemalloc.start()
    began = tracemalloc.get_traced_memory()[0]
    try:
        yield lambda: tracemalloc.get_traced_memory()[0] - began
    finally:
        tracemalloc.stop()
