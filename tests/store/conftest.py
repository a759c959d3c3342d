"""Two front-ends of one server, as far as the store goes."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.store.logs import Front, front
from tests.support.redis import Server


@pytest.fixture
async def one(redis_server: Server) -> AsyncIterator[Front]:
    async with front(redis_server.url) as opened:
        yield opened


@pytest.fixture
async def other(redis_server: Server, one: Front) -> AsyncIterator[Front]:
    """A second front-end of the same server."""
    async with front(redis_server.url) as opened:
        yield opened
