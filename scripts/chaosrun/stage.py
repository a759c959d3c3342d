"""The stage of the faults: Redis in one of its topologies, three front-ends and a load balancer, all started here."""

import socket
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import redis

from tests.support.broker import KorvetServer
from tests.support.haproxy import HAProxy, running_haproxy
from tests.support.redis import Kind, Server, free_port, running_server
from tests.support.topologies import Cluster, Sentinel, running_cluster, running_sentinel

Topology = Literal["single", "sentinel", "cluster"]
TOPOLOGIES: Final[tuple[Topology, ...]] = ("single", "sentinel", "cluster")
FRONTENDS: Final = 3
# Nothing that was acknowledged may be lost when the server is killed. The file lies in memory if that is possible: a
# slow sync of a busy disk would be an outage of its own.
DURABLE: Final = {"appendonly": "yes", "appendfsync": "always"}
MEMORY: Final = Path("/dev/shm")
# A group of several processes gathers at once; Kafka's tests set it to 0, its default is 3 s.
BROKER: Final = {
    "group.initial.rebalance.delay.ms": "1000",
    "group.consumer.min.heartbeat.interval.ms": "500",
    "group.consumer.min.session.timeout.ms": "1000",
    "group.consumer.max.session.timeout.ms": "600000",
    "group.share.min.heartbeat.interval.ms": "500",
    "group.share.min.session.timeout.ms": "1000",
    "group.share.min.record.lock.duration.ms": "1000",
}


@dataclass(kw_only=True)
class Stage:
    """The running processes. Of `server`, `sentinel` and `cluster` only the topology's own is there."""

    topology: Topology
    balancer: HAProxy
    frontends: list[KorvetServer]
    server: Server | None = None
    sentinel: Sentinel | None = None
    cluster: Cluster | None = None

    @contextmanager
    def redis(self) -> Iterator[Any]:
        """A client that finds the server of any key."""
        if self.cluster is not None:
            client: Any = redis.RedisCluster(host="127.0.0.1", port=self.cluster.nodes[0].port)
        elif self.sentinel is not None:
            client = redis.Redis(port=self.sentinel.primary_port())
        else:
            assert self.server is not None
            client = self.server.client()
        with client:
            yield client

    @property
    def bootstrap(self) -> str:
        return self.balancer.bootstrap

    def up(self) -> list[KorvetServer]:
        """The front-ends that serve, as the balancer knows them."""
        seen = zip(self.frontends, self.balancer.backends(), strict=True)
        return [frontend for frontend, backend in seen if backend.is_up and _accepts(frontend.port)]


def kill_and_start(frontend: KorvetServer) -> None:
    """Kill -9 a front-end and start it again at once, without waiting for it."""
    frontend.kill()
    frontend.start(wait=False)


def _accepts(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@contextmanager
def running_stage(
    topology: Topology,
    kind: Kind,
    directory: Path,
    options: Mapping[str, str] = DURABLE,
    tier: Path | None = None,
) -> Iterator[Stage]:
    """Everything up; gone afterwards. ``options`` are a single server's, and ``tier`` is the directory of one."""
    with ExitStack() as stack:
        parts, url = _start_redis(stack, topology, kind, options)
        ports = [free_port() for _ in range(FRONTENDS)]
        balancer = stack.enter_context(running_haproxy(ports, directory=directory))
        frontends = []
        for number, port in enumerate(ports):
            own = directory / f"frontend-{number}"
            own.mkdir()
            frontend = KorvetServer(
                own, redis_url=url, port=port, advertised=balancer.address, proxy_protocol=True, broker=BROKER,
                tier=None if tier is None else str(tier),
            )  # fmt: skip
            stack.callback(frontend.kill)
            frontends.append(frontend.start(wait=False))
        for frontend in frontends:
            frontend.wait_until_ready()
        balancer.wait_until_up()
        yield Stage(topology=topology, balancer=balancer, frontends=frontends, **parts)


def _start_redis(
    stack: ExitStack, topology: Topology, kind: Kind, options: Mapping[str, str]
) -> tuple[Mapping[str, Any], str]:
    if topology == "cluster":
        cluster = stack.enter_context(running_cluster(kind))
        return {"cluster": cluster}, cluster.url
    if topology == "sentinel":
        sentinel = stack.enter_context(running_sentinel(kind))
        return {"sentinel": sentinel}, sentinel.url
    data = stack.enter_context(tempfile.TemporaryDirectory(prefix="kv", dir=MEMORY if MEMORY.is_dir() else None))
    server = stack.enter_context(running_server(kind, options=options, directory=Path(data)))
    return {"server": server}, server.url
