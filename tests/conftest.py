"""Fixtures that every directory of tests may use: real servers, each stopped by the fixture that started it."""

import signal
import traceback
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# How long an example takes is the machine's business.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")

# A shell starts what it puts into the background with Ctrl-C ignored, and processes inherit that; tests press it.
signal.signal(signal.SIGINT, signal.default_int_handler)

pytest_plugins = ["tests.support.redis", "tests.support.broker", "tests.support.kafka"]


@pytest.hookimpl(trylast=True)
def pytest_exception_interact(call: pytest.CallInfo[Any]) -> None:
    """Let go of what a failed test held, after its report is made and a debugger has seen it.

    Kafka clients among it print for minutes, until the garbage is collected, that their broker is gone.
    """
    if call.excinfo is None:
        return
    traceback.clear_frames(call.excinfo.tb)
    for frame, _ in traceback.walk_tb(call.excinfo.tb):
        # What was seen of a frame's variables by this name stays until it is asked for again.
        _ = frame.f_locals


@pytest.fixture(scope="session")
def anyio_backend() -> tuple[str, dict[str, bool]]:
    """Tests marked anyio run as the product does: asyncio on uvloop."""
    return "asyncio", {"use_uvloop": True}
