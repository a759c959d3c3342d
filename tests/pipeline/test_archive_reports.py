"""The reports of an archive that it repeats beside its batches, since a group's offsets expire."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

from korvet.pipeline.archive import ArchiveConfig
from korvet.pipeline.archive.topic import TopicArchive

WITHIN_S = 30.0


class Writer:
    """Hangs in its batch until it is told to end it, and counts reports."""

    def __init__(self) -> None:
        self.reports = 0
        self.typed: Any = SimpleNamespace(error=None)
        self.begun, self.end = threading.Event(), threading.Event()

    def write(self, ends: object) -> None:
        self.begun.set()
        assert self.end.wait(WITHIN_S)

    def write_latest(self) -> None:
        pass

    def keep(self) -> None:
        self.reports += 1


def test_old_proof_is_not_reported_beside_a_batch_that_may_take_it_back() -> None:
    nothing: Any = None
    archive = TopicArchive(
        nothing, ArchiveConfig(bootstrap_servers="nowhere:1", lake="lake", topics=("t",)), "t", nothing, None
    )
    writer: Any = Writer()
    archive._writer = writer
    archive.report()
    assert writer.reports == 1
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(archive.go_on, {0: 1})
        assert writer.begun.wait(WITHIN_S)
        archive.report()
        writer.end.set()
        assert running.result(WITHIN_S) is False
    assert writer.reports == 1
    archive.report()
    assert writer.reports == 2
