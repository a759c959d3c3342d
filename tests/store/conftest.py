"""Two front-ends of one server: their parts below the API."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from korvet.redis.client import Purpose
from korvet.store.outages import Outages
from tests.store.groups import open_groups
from tests.store.logs import NAMESPACE, Front, front
from tests.store.redis_groups import Side
from tests.support.redis import Server, running_server
from tests.support.topologies import Cluster, running_cluster


@pytest.fixture
async def one(redis_server: Server) -> AsyncIterator[Front]:
    """A front-end of an empty server; the server is emptied because some tests damage its keys."""
    with redis_server.client() as client:
        client.flushall()
    async with front(redis_server.url) as opened:
        yield opened


@pytest.fixture
async def other(redis_server: Server, one: Front) -> AsyncIterator[Front]:
    """A second front-end of the same server."""
    async with front(redis_server.url) as opened:
        yield opened


@pytest.fixture
def server(redis_server: Server) -> Iterator[Server]:
    """The session's server, empty."""
    with redis_server.client() as client:
        client.flushall()
        client.config_set("maxmemory", 0)
    yield redis_server


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """A cluster for one test. Its nodes serve their slots without the others."""
    with running_cluster() as started:
        for node in started.nodes:
            started.ask(node, "CONFIG", "SET", "cluster-require-full-coverage", "no")
        yield started


@pytest.fixture
async def one_of_cluster(cluster: Cluster) -> AsyncIterator[Front]:
    """A front-end of the cluster."""
    async with front(cluster.url) as opened:
        yield opened


@pytest.fixture
def own_server(redis_server: Server) -> Iterator[Server]:
    """A server of the same kind for one test, which may kill it."""
    with running_server(redis_server.kind) as own:
        yield own


@pytest.fixture
async def a(one: Front) -> Side:
    """The first front-end with its groups."""
    return Side(one, await open_groups(one, Outages(one.store)))


@pytest.fixture
async def b(a: Side, other: Front) -> Side:
    """The second front-end with its groups."""
    return Side(other, await open_groups(other, Outages(other.store)))


@pytest.fixture
async def no_reader(one: Front) -> None:
    """The client at the host reads nothing yet."""
    key = NAMESPACE.reader("client", "host")
    await one.store.call(Purpose.COORDINATE, key, "DEL", key)
