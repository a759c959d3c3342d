"""How the processes of a whole run share the tests.

A process takes a file at a time, for a file's tests share servers. Tests of some directories compute, and those of
others wait for timeouts of sessions and servers. A file that computes and a file that waits alternate, so the
processors have work all the time. The short files come last: with them all processes end at about the same time.
"""

from __future__ import annotations

from itertools import chain, zip_longest
from pathlib import Path

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling

TESTS = Path(__file__).resolve().parents[1]
COMPUTING = ("oracle", "pipeline", "scripts")
WAITING = ("chaos", "cluster", "kafka")
WHOLE = "tests/oracle/"
"""One process takes all tests of this directory. In each process they would start two brokers of Apache Kafka."""


def in_order(files: list[Path]) -> list[Path]:
    """The files as processes take them, each once although they are given for each test."""
    files = list(dict.fromkeys(files))
    computing, waiting = _under(COMPUTING, files), _under(WAITING, files)
    alternating = [file for file in chain(*zip_longest(waiting, computing)) if file is not None]
    return list(dict.fromkeys((*alternating, *files)))


def _under(directories: tuple[str, ...], files: list[Path]) -> list[Path]:
    return [file for name in directories for file in files if file.is_relative_to(TESTS / name)]


def share(test: str) -> str:
    """The tests that one process takes with this one: a file's, or a directory's."""
    return WHOLE if test.startswith(WHOLE) else test.partition("::")[0]


class Sharing(LoadFileScheduling):
    """Gives each process a `share` at a time."""

    def _split_scope(self, nodeid: str) -> str:
        return share(nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Sharing | None:
    """Share the tests, if files are shared at all."""
    return Sharing(config, log) if config.getoption("dist") == "loadfile" else None


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Sort the tests by their files if several processes share them; else pytest's order keeps servers longest."""
    if hasattr(config, "workerinput"):
        place = {file: number for number, file in enumerate(in_order([item.path for item in items]))}
        items.sort(key=lambda item: place[item.path])
