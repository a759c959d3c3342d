"""Slots of a cluster that move while they are used."""

import random
from typing import Any

from korvet.store.keys import Namespace
from scripts.chaosrun.load import PARTITIONS, TOPICS
from tests.support.redis import Server
from tests.support.topologies import Cluster


class Mover:
    """A mover of the slots that the load uses, which knows the node of each."""

    def __init__(self, cluster: Cluster, groups: list[str], chance: random.Random) -> None:
        self._cluster, self._chance = cluster, chance
        names = Namespace("default")
        keys = [names.catalog.meta, *(names.group(group).group for group in groups)]
        keys += [names.partition(topic, number).log for topic in TOPICS for number in range(PARTITIONS)]
        self._slots = sorted({self._slot_of(key) for key in keys})
        self._owners = {slot: self._owner_of(slot) for slot in self._slots}

    def _slot_of(self, key: str) -> int:
        slot: Any = self._cluster.ask(self._cluster.nodes[0], "CLUSTER", "KEYSLOT", key)
        return int(slot)

    def _owner_of(self, slot: int) -> Server:
        """The node that serves the slot, in a cluster without moving slots."""
        ranges: Any = self._cluster.ask(self._cluster.nodes[0], "CLUSTER", "SLOTS")
        port = next(int(primary[1]) for first, last, primary, *_ in ranges if first <= slot <= last)
        return next(node for node in self._cluster.nodes if node.port == port)

    def move_one(self) -> None:
        """Move a random slot to a random other node, as `redis-cli --cluster reshard` does."""
        slot = self._chance.choice(self._slots)
        source = self._owners[slot]
        target = self._chance.choice([node for node in self._cluster.nodes if node is not source])
        self._cluster.move_slot(slot, source, target)
        self._owners[slot] = target
