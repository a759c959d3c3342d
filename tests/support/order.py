"""The order in which the processes of a whole run take files.

Tests of some directories compute, and those of others wait for timeouts of sessions and servers. A file that computes
and a file that waits alternate, so the processors have work all the time. The short files come last: with them all
processes end at about the same time.
"""

from __future__ import annotations

from itertools import chain, zip_longest
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
COMPUTING = ("pipeline", "oracle", "scripts")
WAITING = ("chaos", "cluster", "kafka")


def in_order(files: list[Path]) -> list[Path]:
    """The files as processes take them, each once."""
    computing, waiting = _under(COMPUTING, files), _under(WAITING, files)
    alternating = [file for file in chain(*zip_longest(waiting, computing)) if file is not None]
    return list(dict.fromkeys((*alternating, *files)))


def _under(directories: tuple[str, ...], files: list[Path]) -> list[Path]:
    return [file for name in directories for file in files if file.is_relative_to(TESTS / name)]


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Sort the tests by their files if several processes share them; else pytest's order keeps servers longest."""
    if hasattr(config, "workerinput"):
        place = {file: number for number, file in enumerate(in_order([item.path for item in items]))}
        items.sort(key=lambda item: place[item.path])
