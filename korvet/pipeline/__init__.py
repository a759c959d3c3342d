"""The data pipeline between topics and a lake, on Spark: topics to Delta tables (archive), back (replay), and reports.

The package runs in Spark's driver and executors. It is a plain Kafka client: it talks to brokers and never to Redis.
It needs the extra ``korvet[spark]``. Its public names are those of `korvet.pipeline.public`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from korvet.pipeline.public import *  # noqa: F403


def __getattr__(name: str) -> Any:
    """A public name. Workers import modules of this package by the thousand, and need few of them.

    :raises AttributeError: if the name is not public.
    """
    if name.startswith("_"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.public"), name)
