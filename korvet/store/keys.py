"""Every Redis key name is made here, and nowhere else.

Keys of one atomic unit share a hash tag, so that one function may touch them all on Redis Cluster. Ids are
percent-encoded, so that a brace or a colon in a group id cannot break the tag.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple
from urllib.parse import quote
from zlib import crc32

GROUP_INDEX_SHARDS = 16
TRANSACTION_SHARDS = 16


class PartitionKeys(NamedTuple):
    """Keys of one partition, in the order of every log function's KEYS."""

    log: str
    meta: str
    producers: str


class TransactionLogKeys(NamedTuple):
    """Keys of one partition with those of its transactions, for the functions that append to these, trim and delete."""

    log: str
    meta: str
    producers: str
    open: str
    aborted: str
    transactions: str


class InletKeys(NamedTuple):
    """Keys of one partition with those of what Redis users add to it."""

    log: str
    meta: str
    producers: str
    inlet: str
    refused: str


class GroupKeys(NamedTuple):
    """Keys of one group, in the order of every group function's KEYS."""

    group: str
    members: str
    sessions: str
    static: str
    offsets: str


class AttachedGroupKeys(NamedTuple):
    """Keys of one group with that of its Redis groups, for the functions that attach, tell of them and delete."""

    group: str
    members: str
    sessions: str
    static: str
    offsets: str
    attached: str


class TransactionGroupKeys(NamedTuple):
    """Keys of one group with all that are beside it, for the functions of transactions and for its deletion."""

    group: str
    members: str
    sessions: str
    static: str
    offsets: str
    attached: str
    pending: str


class TransactionKeys(NamedTuple):
    """Keys of one transactional id, in the order of every transaction function's KEYS."""

    id: str
    deadlines: str


def placed_batch(log: str, place: int | str) -> str:
    """Where a batch lies that its entry does not carry: at the offset just past it, or where compaction put it."""
    return f"{log}:{place}"


def spare_stream(log: str) -> str:
    """Where compaction builds a partition's next stream."""
    return f"{log}:spare"


def temporary_batch(log: str, token: str) -> str:
    """Where a batch waits for its append; ``token`` is unique among all front-ends and does not look like an offset."""
    return f"{log}:t{token}"


class CatalogKeys(NamedTuple):
    """Keys of the catalog, in the order of every catalog function's KEYS."""

    meta: str
    topics: str
    configs: str


def _encoded(identifier: str) -> str:
    return quote(identifier, safe="")


@dataclass(frozen=True)
class Namespace:
    """All keys of one tenant."""

    name: str = "default"

    @cached_property
    def catalog(self) -> CatalogKeys:
        unit = f"korvet:{{{_encoded(self.name)}:catalog}}"
        return CatalogKeys(f"{unit}:meta", f"{unit}:topics", f"{unit}:configs")

    @cached_property
    def frontends(self) -> str:
        """The hash of the front-ends that stand under addresses of their own."""
        return f"korvet:{{{_encoded(self.name)}:catalog}}:frontends"

    def group_index(self, shard: int) -> str:
        """The set of group ids of one index shard."""
        return f"korvet:{{{_encoded(self.name)}:catalog}}:groups:{shard:02d}"

    def group_index_of(self, group_id: str) -> str:
        """The index shard that lists this group."""
        return self.group_index(crc32(group_id.encode()) % GROUP_INDEX_SHARDS)

    def partition(self, topic: str, partition: int) -> PartitionKeys:
        unit = f"korvet:{{{_encoded(self.name)}:{_encoded(topic)}:{partition}}}"
        return PartitionKeys(f"{unit}:log", f"{unit}:meta", f"{unit}:producers")

    def transaction_log(self, topic: str, partition: int) -> TransactionLogKeys:
        """The keys of `partition`, and those beside them that know its transactions."""
        keys = self.partition(topic, partition)
        unit = keys.log.removesuffix(":log")
        return TransactionLogKeys(*keys, f"{unit}:open", f"{unit}:aborted", f"{unit}:transactions")

    def inlet(self, topic: str, partition: int) -> InletKeys:
        """The keys of `partition`, and of the streams in which Redis users put records, and find those not taken."""
        keys = self.partition(topic, partition)
        inlet = f"{keys.log.removesuffix(':log')}:in"
        return InletKeys(*keys, inlet, f"{inlet}:refused")

    def group(self, group_id: str) -> GroupKeys:
        unit = f"korvet:{{{_encoded(self.name)}:group:{_encoded(group_id)}}}"
        return GroupKeys(f"{unit}:group", f"{unit}:members", f"{unit}:sessions", f"{unit}:static", f"{unit}:offsets")

    def attached_group(self, group_id: str) -> AttachedGroupKeys:
        """The keys of `group`, and the one beside them that knows its Redis groups."""
        keys = self.group(group_id)
        return AttachedGroupKeys(*keys, f"{keys.group.removesuffix(':group')}:attached")

    def transaction_group(self, group_id: str) -> TransactionGroupKeys:
        """The keys of `attached_group`, and the one beside them that holds the offsets of open transactions."""
        keys = self.attached_group(group_id)
        return TransactionGroupKeys(*keys, f"{keys.group.removesuffix(':group')}:pending")

    def _transaction_shard(self, shard: int) -> str:
        return f"korvet:{{{_encoded(self.name)}:txn:{shard:02d}}}"

    def transaction(self, transactional_id: str) -> TransactionKeys:
        """The keys of a transactional id, which lie in its shard."""
        shard = crc32(transactional_id.encode()) % TRANSACTION_SHARDS
        unit = self._transaction_shard(shard)
        return TransactionKeys(f"{unit}:id:{_encoded(transactional_id)}", self.transaction_deadlines(shard))

    def transaction_deadlines(self, shard: int) -> str:
        """The zset of all transactional ids of a shard by the time at which something of them is due."""
        return f"{self._transaction_shard(shard)}:deadlines"

    def reader(self, client_id: str, client_host: str) -> str:
        """The groups for which a client at a host reads."""
        return f"korvet:{{{_encoded(self.name)}:reader:{_encoded(client_id)}@{_encoded(client_host)}}}:groups"
