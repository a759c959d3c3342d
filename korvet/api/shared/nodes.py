"""The nodes that clients see: the leader of each partition, the coordinator of each group, and their addresses.

All of it is only a hint. Every front-end serves every request, so a client with another or an older hint is served as
well.

Rendezvous hashing spreads leaders and coordinators: each partition and each group takes the node with the highest score
for it. When a node comes or goes, only its own share moves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import blake2b
from operator import attrgetter
from typing import Final, NamedTuple, Protocol

from korvet.store.registry import DEFAULT_LISTENER, Registry

NAMED_NODES: Final = 6
"""The nodes of a listener with a host name for each, at one port."""
_REMEMBERED: Final = 100_000
_REMEMBERED_NAMED: Final = 1000

_ONES: Final = 2**64 - 1
_ODD: Final = 0x9E3779B97F4A7C15
"""2^64 divided by the golden ratio: multiplication by it spreads every bit of a number to the highest bits."""


class Node(NamedTuple):
    """A node, which clients see as a broker."""

    id: int
    host: str
    port: int


class Nodes(Protocol):
    """The nodes of a listener. Answers without an await between them belong to one state of the registry."""

    @property
    def own_id(self) -> int:
        """The id of the answering front-end; with a load balancer, an id that leads to any of them."""

    def all(self) -> Sequence[Node]:
        """Every node that `leader` and `coordinator` may return."""

    def leader(self, topic: str, partition: int) -> Node:
        """The node to which clients send a partition's Produce and Fetch requests."""

    def coordinator(self, group_id: str) -> Node:
        """The node to which a group's members send their requests."""

    def lists(self, group_id: str, target: int | None) -> bool:
        """True if the target node lists a group.

        :param target: the node, by the balancer's port or the server name; None if neither names it.

        Clients query every node for its groups, and some show a group twice if two nodes list it.
        """

    def leads(self, topic: str, partition: int, target: int | None) -> bool:
        """True if a partition lies in the log directory of the target node, by the rule of `lists`."""


class Spread:
    """Rendezvous hashing over some nodes, the same in every process; ``remembered`` results are cached."""

    def __init__(self, nodes: Sequence[Node], remembered: int = _REMEMBERED) -> None:
        self._remembered = remembered
        self._nodes = [(_hashed(str(node.id)), node) for node in nodes]
        self._found: dict[tuple[str, int], Node] = {}

    def node(self, name: str, index: int = -1) -> Node:
        """The node for a name, or for a topic's name and a partition's index."""
        if len(self._nodes) == 1:
            return self._nodes[0][1]
        found = self._found.get((name, index))
        if found is None:
            if len(self._found) >= self._remembered:
                self._found.clear()
            found = self._found[name, index] = self._highest(_hashed(f"{index}:{name}"))
        return found

    def _highest(self, hashed: int) -> Node:
        return max(self._nodes, key=lambda of: (of[0] ^ hashed) * _ODD & _ONES)[1]


def _hashed(text: str) -> int:
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest())


class FixedNodes:
    """Nodes that never change. Without separate coordinators, the leaders coordinate too.

    :param is_by_id: true if a client's target is the id of a node, not a port.
    """

    def __init__(self, leaders: Sequence[Node], coordinators: Sequence[Node] = (), *, is_by_id: bool = False) -> None:
        self.own_id = leaders[0].id
        self._all = (*leaders, *coordinators)
        self._target_of: Callable[[Node], int] = attrgetter("id" if is_by_id else "port")
        self._targets = {self._target_of(node) for node in self._all}
        # Each tenant has named nodes of its own, so they remember less.
        remembered = _REMEMBERED_NAMED if is_by_id else _REMEMBERED
        self._leaders = Spread(leaders, remembered)
        self._coordinators = Spread(coordinators or leaders, remembered)

    def all(self) -> Sequence[Node]:
        return self._all

    def leader(self, topic: str, partition: int) -> Node:
        return self._leaders.node(topic, partition)

    def coordinator(self, group_id: str) -> Node:
        return self._coordinators.node(group_id)

    def lists(self, group_id: str, target: int | None) -> bool:
        return target not in self._targets or self._target_of(self.coordinator(group_id)) == target

    def leads(self, topic: str, partition: int, target: int | None) -> bool:
        return target not in self._targets or self._target_of(self.leader(topic, partition)) == target


class LeasedNodes:
    """The live front-ends in the registry of a namespace, by their addresses at listeners of one name."""

    def __init__(self, registry: Registry, name: str = DEFAULT_LISTENER) -> None:
        self._registry = registry
        self._name = name
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

    def lists(self, group_id: str, target: int | None) -> bool:
        return self.coordinator(group_id).id == self.own_id

    def leads(self, topic: str, partition: int, target: int | None) -> bool:
        return self.leader(topic, partition).id == self.own_id

    def _follow(self) -> Spread:
        live = self._registry.live_at(self._name)
        if live is not self._live:
            self._live = live
            self._nodes = tuple(Node(node_id, address.host, address.port) for node_id, address in live)
            self._spread = Spread(self._nodes)
        return self._spread


def virtual_nodes(host: str, ports: Sequence[int]) -> FixedNodes:
    """The nodes of front-ends behind a load balancer: one for each of its ports, because clients see all
    front-ends as one.

    A client keeps a connection for each node, and the balancer gives each connection to any front-end. So several
    front-ends serve one client, and a request that waits at one node holds up nothing at the others. The second half of
    the nodes coordinates, because kafkajs would send heartbeats after a produce of megabytes. Every front-end of a
    namespace must return the same nodes without communication, so the ids are fixed.

    Each node has an address of its own: older librdkafka treats two nodes at one address as one broker whose id
    changes. Then it never finds the leaders (confluentinc/librdkafka#4212; kcat with 2.0.2 reads nothing, 2.16 is
    right).
    """
    return _halves([Node(node_id, host, port) for node_id, port in enumerate(ports, 1)])


def named_nodes(host_of: Callable[[int], str], ports: Sequence[int], *, is_by_id: bool) -> FixedNodes:
    """As `virtual_nodes`, with host names by the nodes' ids. With ``is_by_id`` names differ, so one port is enough."""
    if is_by_id and len(ports) == 1:
        ports = [ports[0]] * NAMED_NODES
    return _halves([Node(node_id, host_of(node_id), port) for node_id, port in enumerate(ports, 1)], is_by_id=is_by_id)


def _halves(nodes: Sequence[Node], *, is_by_id: bool = False) -> FixedNodes:
    leaders = (len(nodes) + 1) // 2
    return FixedNodes(nodes[:leaders], nodes[leaders:], is_by_id=is_by_id)
