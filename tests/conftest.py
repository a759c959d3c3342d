"""Fixtures that every directory of tests may use: real servers, each stopped by the fixture that started it."""

import gc
import os
import signal
import traceback
from collections.abc import Generator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests.support.java import hasten_spark
from tests.support.leftovers import guard
from tests.support.tools import left_out

# The machine decides how long an example takes. Each run has the same examples, unless KORVET_MODEL_EXAMPLES asks for
# new ones (`tests/lua/machines.py`). A failure prints its example in a form that repeats it.
settings.register_profile(
    "untimed",
    deadline=None,
    derandomize="KORVET_MODEL_EXAMPLES" not in os.environ,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("untimed")

# A shell starts background jobs with Ctrl-C ignored, and child processes inherit that; tests press Ctrl-C.
signal.signal(signal.SIGINT, signal.default_int_handler)

guard()
hasten_spark()

pytest_plugins = [
    "tests.support.redis", "tests.support.broker", "tests.support.kafka", "tests.support.needs", "tests.support.order"
]  # fmt: skip


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect no garbage while pytest collects tests, and never look for it among the tests, which all stay."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_exception_interact(call: pytest.CallInfo[Any]) -> None:
    """Release the objects that a failed test holds, after its report and after a debugger has seen it.

    Otherwise its Kafka clients print for minutes that their broker is gone, until they are collected.
    """
    if call.excinfo is None:
        return
    traceback.clear_frames(call.excinfo.tb)
    for frame, _ in traceback.walk_tb(call.excinfo.tb):
        # A frame keeps the variables that were read by this name until it is read again.
        _ = frame.f_locals


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    """Say in the last line which tests this machine could not run."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None and (line := left_out(one.longrepr[2] for one in reporter.stats.get("skipped", ()))):
        reporter.write_line(line)


@pytest.fixture(scope="session")
def anyio_backend() -> tuple[str, dict[str, bool]]:
    """Tests marked anyio run as the product does: asyncio on uvloop."""
    return "asyncio", {"use_uvloop": True}
