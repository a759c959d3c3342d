"""How the processes of a whole run share the tests.

A process takes a share at a time: a file, or the files that share what is dear to start. Tests of some directories
compute, and those of others wait for timeouts of sessions and servers. A share that computes and a file that waits
alternate, so the processors have work all the time. The short files come last: with them all processes end at about the
same time.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import chain, zip_longest
from pathlib import Path

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling

TESTS = Path(__file__).resolve().parents[1]
COMPUTING = ("oracle", "pipeline", "scripts")
WAITING = ("chaos", "cluster", "kafka")
SHARES: Mapping[str, str] = {
    "two brokers of Apache Kafka": "tests/oracle/",
    "a session of Spark": "tests/pipeline/test_[a-k]",
    "another session of Spark": "tests/pipeline/",
}
"""What files share, and the pattern of their paths; the first that fits counts.

A process that took such a file between others would start it, warm it up and stop it for that file alone. With one
session of Spark its process would be the last to end.
"""


def in_order(files: list[Path]) -> list[Path]:
    """The files as processes take them, each once although they are given for each test.

    A process takes a share when the share's first file comes.
    """
    files = list(dict.fromkeys(files))
    computing, waiting = _firsts(_under(COMPUTING, files)), _under(WAITING, files)
    alternating = [file for file in chain(*zip_longest(waiting, computing)) if file is not None]
    return list(dict.fromkeys((*alternating, *files)))


def _under(directories: tuple[str, ...], files: list[Path]) -> list[Path]:
    return [file for name in directories for file in files if file.is_relative_to(TESTS / name)]


def _firsts(files: list[Path]) -> list[Path]:
    """The first file of each share."""
    found: dict[str, Path] = {}
    for file in files:
        found.setdefault(share(file.relative_to(TESTS.parent).as_posix()), file)
    return list(found.values())


def share(test: str) -> str:
    """The tests that one process takes with this one: its file's, or those of `SHARES`."""
    for what, pattern in SHARES.items():
        if re.match(pattern, test):
            return what
    return test.partition("::")[0]


class Sharing(LoadFileScheduling):
    """Gives each process a `share` at a time. The scenes of a run without the marker `all` fit one session of Spark."""

    def _split_scope(self, nodeid: str) -> str:
        found = share(nodeid)
        return found.replace("another", "a") if self.config.getoption("markexpr") else found


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
