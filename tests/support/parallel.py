"""How tests are shared out where several processes run them at once (pytest's -n).

A module's tests stay together, for they share its servers, and so do all of tests/pipeline, for they share one Spark.
"""

from __future__ import annotations

from pathlib import PurePosixPath

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

TOGETHER = PurePosixPath("tests/pipeline")


class ByModule(LoadScopeScheduling):
    """A module at a time to each process."""

    def _split_scope(self, nodeid: str) -> str:
        module = PurePosixPath(nodeid.partition("::")[0])
        return str(TOGETHER if TOGETHER in module.parents else module)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> ByModule:
    """Take this in the place of what --dist says."""
    return ByModule(config, log)
