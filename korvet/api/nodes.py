"""The brokers that a client is shown: who leads a partition, who coordinates a group, and where they are.

All of it is only a hint. Every front-end serves every request, so who was told of others, before or by another
front-end, is served as well as anybody.

Leaders and coordinators are spread by rendezvous hashing: each partition and each group takes the node that has the
highest score for it, so that with a node only its own share moves.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Final, NamedTuple, Protocol

from korvet.store.registry import Registry

_REMEMBERED: Final = 100_000

_ONES: Final = 2**64 - 1
_ODD: Final = 0x9E3779B97F4A7C15
"""2^64 over the golden ratio: a product with it carries every bit of a number into its highest ones."""


class Node(NamedTuple):
    """A broker as clients see it."""

    id: int
    host: str
    port: int


class Nodes(Protocol):
    """The brokers of a listener. What is asked without an await in between belongs together."""

    @property
    def own_id(self) -> int:
        """The id of the front-end that answers, or one that leads to it as well as to any other."""

    def all(self) -> Sequence[Node]:
        """Every node that the other two may give."""

    def leader(self, topic: str, partition: int) -> Node:
        """Where to produce to a partition and to fetch from it."""

    def coordinator(self, group_id: str) -> Node:
        """Where the members of a group meet."""

    def lists(self, group_id: str, target_port: int | None) -> bool:
        """Whether a group is in the list of the node that was asked, by the port of the balancer where that is known.

        Clients ask every node for its groups, and some show twice what two nodes have.
        """

    def leads(self, topic: str, partition: int, target_port: int | None) -> bool:
        """Whether a partition lies in the log directory of the node that was asked, by the same rule."""


class Spread:
    """Rendezvous hashing over some nodes, the same in every process; what was asked for is remembered."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self._nodes = [(_hashed(str(node.id)), node) for node in nodes]
        self._found: dict[tuple[str, int], Node] = {}

    def node(self, name: str, index: int = -1) -> Node:
        """The node of a name, or of a part of it."""
        if len(self._nodes) == 1:
            return self._nodes[0][1]
        found = self._found.get((name, index))
        if found is None:
            if len(self._found) >= _REMEMBERED:
                self._found.clear()
            found = self._found[name, index] = self._highest(_hashed(f"{index}:{name}"))
        return found

    def _highest(self, place: int) -> Node:
        return max(self._nodes, key=lambda of: (of[0] ^ place) * _ODD & _ONES)[1]


def _hashed(text: str) -> int:
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest())


class FixedNodes:
    """Nodes that stay as they are. Where no coordinators are given, the leaders are these too."""

    def __init__(self, leaders: Sequence[Node], coordinators: Sequence[Node] = ()) -> None:
        self.own_id = leaders[0].id
        self._all = (*leaders, *coordinators)
        self._ports = {node.port for node in self._all}
        self._leaders = Spread(leaders)
        self._coordinators = Spread(coordinators or leaders)

    def all(self) -> Sequence[Node]:
        return self._all

    def leader(self, topic: str, partition: int) -> Node:
        return self._leaders.node(topic, partition)

    def coordinator(self, group_id: str) -> Node:
        return self._coordinators.node(group_id)

    def lists(self, group_id: str, target_port: int | None) -> bool:
        return target_port not in self._ports or self.coordinator(group_id).port == target_port

    def leads(self, topic: str, partition: int, target_port: int | None) -> bool:
        return target_port not in self._ports or self.leader(topic, partition).port == target_port


class LeasedNodes:
    """The front-ends that live, by the registry of their namespace."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._live: object = None
        self._nodes: tuple[Node, ...] = ()
        self._spread = Spread(())

    @property
    def own_id(self) -> int:
        return self._registry.own_id

    def all(self) -> Sequence[Node]:
        self._follow()
        return self._nodes

    def leader(self, topic: str, partition: int) -> Node:
        return self._follow().node(topic, partition)

    def coordinator(self, group_id: str) -> Node:
        return self._follow().node(group_id)

    def lists(self, group_id: str, target_port: int | None) -> bool:
        return self.coordinator(group_id).id == self.own_id

    def leads(self, topic: str, partition: int, target_port: int | None) -> bool:
        return self.leader(topic, partition).id == self.own_id

    def _follow(self) -> Spread:
        live = self._registry.live
        if live is not self._live:
            self._live = live
            self._nodes = tuple(Node(node_id, address.host, address.port) for node_id, address in live)
            self._spread = Spread(self._nodes)
        return self._spread


def virtual_nodes(host: str, ports: Sequence[int]) -> FixedNodes:
    """What clients see of front-ends that stand behind a load balancer, which are not told apart: a node for each port.

    A client keeps a connection for each node, and the balancer gives each to any front-end: so one client's load is on
    several of them, and a request that waits at one node holds up nothing at the others. The second half coordinates,
    because kafkajs would send heartbeats behind a produce of megabytes. Every front-end of a namespace must tell the
    same, without asking, so the ids are fixed.

    No two nodes have one address: older librdkafka takes them for one broker whose id changes, and never finds the
    leaders (confluentinc/librdkafka#4212; seen with 2.0.2, where kcat reads nothing, and no more with 2.16).
    """
    nodes = [Node(node_id, host, port) for node_id, port in enumerate(ports, 1)]
    leaders = (len(nodes) + 1) // 2
    return FixedNodes(nodes[:leaders], nodes[leaders:])
