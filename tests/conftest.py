"""Fixtures that every directory of tests may use: real servers, each stopped by the fixture that started it."""

import signal

import pytest
from hypothesis import HealthCheck, settings

# How long an example takes is the machine's business.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")

# A shell starts what it puts into the background with Ctrl-C ignored, and processes inherit that; tests press it.
signal.signal(signal.SIGINT, signal.default_int_handler)

pytest_plugins = ["tests.support.redis", "tests.support.broker", "tests.support.kafka"]


@pytest.fixture(scope="session")
def anyio_backend() -> tuple[str, dict[str, bool]]:
    """Tests marked anyio run as the product does: asyncio on uvloop."""
    return "asyncio", {"use_uvloop": True}
