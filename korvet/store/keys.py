"""The names of all Redis keys are made here, and nowhere else.

Keys of one unit share a hash tag, so one function may touch them all on Redis Cluster. Ids are percent-encoded, so a
brace or a colon in a group id cannot break the tag. After the namespace comes a topic, or another unit with a leading
``@``. No topic's name can contain that, so rights to one topic's keys grant nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from typing import NamedTuple
from urllib.parse import quote
from zlib import crc32

GROUP_INDEX_SHARDS = 16
TRANSACTION_SHARDS = 16
QUOTA_SHARDS = 16
_MOST_BUCKET_NAME = 128


class PartitionKeys(NamedTuple):
    """Keys of one partition, in the order of every log function's KEYS."""

    log: str
    meta: str
    producers: str


class TransactionLogKeys(NamedTuple):
    """Keys of one partition with those of its transactions, for functions that write transactions, trim and delete."""

    log: str
    meta: str
    producers: str
    open: str
    aborted: str
    transactions: str


class TierKeys(NamedTuple):
    """Keys of one partition with the list of its segments."""

    log: str
    meta: str
    tier: str
    aborted: str


class ShareKeys(NamedTuple):
    """Keys of one partition with those of a share group, in the order of every share function's KEYS."""

    log: str
    meta: str
    shares: str
    ranges: str


class InletKeys(NamedTuple):
    """Keys of one partition with those of its inlet."""

    log: str
    meta: str
    producers: str
    inlet: str
    refused: str


class GroupKeys(NamedTuple):
    """Keys of one group. A group function gets the keys in its contract, in this order."""

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
    """The key of a placed batch; ``place`` is the offset just past it, or a name from compaction."""
    return f"{log}:{place}"


def spare_stream(log: str) -> str:
    """The key of the stream that compaction builds beside the log."""
    return f"{log}:spare"


def temporary_batch(log: str, token: str) -> str:
    """A temporary key; ``token`` is unique among all front-ends and does not look like an offset."""
    return f"{log}:t{token}"


def share_partition(keys: PartitionKeys, group_id: str) -> ShareKeys:
    """The keys of a partition for functions of a share group, whose id comes after the tag and is not encoded."""
    unit = keys.log.removesuffix(":log")
    return ShareKeys(keys.log, keys.meta, f"{unit}:shares", f"{unit}:share:{group_id}")


class CatalogKeys(NamedTuple):
    """Keys of the catalog, in the order of every catalog function's KEYS."""

    meta: str
    topics: str
    configs: str


class SecurityKeys(NamedTuple):
    """Keys of the unit of security: users, access rules, quotas, and a secret of the namespace."""

    users: str
    acls: str
    secret: str
    quotas: str


class TenantsKeys(NamedTuple):
    """Keys of the unit of tenants, which is beside all namespaces."""

    tenants: str
    secret: str
    frontends: str


class ConnectionKeys(NamedTuple):
    """A unit of counters of connections, by its hash tag in braces."""

    unit: str

    @property
    def leases(self) -> str:
        """The zset of front-ends that count connections here."""
        return f"korvet:{self.unit}:leases"

    def counter(self, kind: str, name: str) -> str:
        """The hash of the connections of an address or a tenant, by front-ends."""
        return f"korvet:{self.unit}:connections:{kind}:{_encoded(name)}"


TENANTS_PREFIX = "korvet:{@tenants}:"
TENANTS = TenantsKeys._make(f"{TENANTS_PREFIX}{name}" for name in TenantsKeys._fields)
ALL_CONNECTIONS = ConnectionKeys("{@tenants}")
"""The connections of front-ends whose clients choose a tenant."""


def _encoded(identifier: str) -> str:
    return quote(identifier, safe="")


@dataclass(frozen=True)
class Namespace:
    """All keys of one tenant."""

    name: str = "default"

    @cached_property
    def prefix(self) -> str:
        """The prefix of all its keys, and of no other namespace's."""
        return f"korvet:{{{_encoded(self.name)}:"

    @property
    def former_catalog(self) -> str:
        """A key that a namespace has only if korvet 0.6 or older named its keys."""
        return f"korvet:{{{_encoded(self.name)}:catalog}}:meta"

    @cached_property
    def _catalog_unit(self) -> str:
        return f"korvet:{{{_encoded(self.name)}:@catalog}}"

    @cached_property
    def catalog(self) -> CatalogKeys:
        unit = self._catalog_unit
        return CatalogKeys(f"{unit}:meta", f"{unit}:topics", f"{unit}:configs")

    @cached_property
    def frontends(self) -> str:
        """The hash of the registry of front-ends."""
        return f"{self._catalog_unit}:frontends"

    @cached_property
    def doomed(self) -> str:
        """The zset of objects of the tier that may be deleted."""
        return f"{self._catalog_unit}:doomed"

    @cached_property
    def security(self) -> SecurityKeys:
        unit = f"korvet:{{{_encoded(self.name)}:@security}}"
        return SecurityKeys._make(f"{unit}:{name}" for name in SecurityKeys._fields)

    def group_index(self, shard: int) -> str:
        """The set of group ids of one index shard."""
        return f"{self._catalog_unit}:groups:{shard:02d}"

    def group_index_of(self, group_id: str) -> str:
        """The index shard that lists this group."""
        return self.group_index(crc32(group_id.encode()) % GROUP_INDEX_SHARDS)

    def partition(self, topic: str, partition: int) -> PartitionKeys:
        unit = f"korvet:{{{_encoded(self.name)}:{_encoded(topic)}:{partition}}}"
        return PartitionKeys(f"{unit}:log", f"{unit}:meta", f"{unit}:producers")

    def transaction_log(self, topic: str, partition: int) -> TransactionLogKeys:
        """The keys of `partition`, and those of its transactions."""
        keys = self.partition(topic, partition)
        unit = keys.log.removesuffix(":log")
        return TransactionLogKeys(*keys, f"{unit}:open", f"{unit}:aborted", f"{unit}:transactions")

    def tier(self, topic: str, partition: int) -> TierKeys:
        """The keys of `partition` for functions of its segments."""
        keys = self.transaction_log(topic, partition)
        return TierKeys(keys.log, keys.meta, f"{keys.log.removesuffix(':log')}:tier", keys.aborted)

    def inlet(self, topic: str, partition: int) -> InletKeys:
        """The keys of `partition`, its inlet, and the stream of refused entries."""
        keys = self.partition(topic, partition)
        inlet = f"{keys.log.removesuffix(':log')}:in"
        return InletKeys(*keys, inlet, f"{inlet}:refused")

    def group(self, group_id: str) -> GroupKeys:
        unit = f"korvet:{{{_encoded(self.name)}:@group:{_encoded(group_id)}}}"
        return GroupKeys._make(f"{unit}:{name}" for name in GroupKeys._fields)

    def _transaction_shard(self, shard: int) -> str:
        return f"korvet:{{{_encoded(self.name)}:@txn:{shard:02d}}}"

    def transaction(self, transactional_id: str) -> TransactionKeys:
        """The keys of a transactional id, which lie in its shard."""
        shard = crc32(transactional_id.encode()) % TRANSACTION_SHARDS
        unit = self._transaction_shard(shard)
        return TransactionKeys(f"{unit}:id:{_encoded(transactional_id)}", self.transaction_deadlines(shard))

    def transaction_deadlines(self, shard: int) -> str:
        """The zset of a shard's transactional ids by their deadlines."""
        return f"{self._transaction_shard(shard)}:deadlines"

    def quota_bucket(self, name: str) -> str:
        """The key of a quota's bucket, in its shard. Long names, which clients may invent, are digested."""
        shard, text = crc32(name.encode()) % QUOTA_SHARDS, _encoded(name)
        if len(text) > _MOST_BUCKET_NAME:
            text = sha256(name.encode()).hexdigest()
        return f"korvet:{{{_encoded(self.name)}:@quota:{shard:02d}}}:{text}"

    @property
    def connections(self) -> ConnectionKeys:
        """The connections of front-ends of which this is the first fixed namespace."""
        return ConnectionKeys(f"{{{_encoded(self.name)}:@connections}}")

    def probe(self, number: int) -> str:
        """One of many keys in any slot, for `korvet_probe`."""
        return f"korvet:{{{_encoded(self.name)}:@probe:{number}}}"

    def reader(self, client_id: str, client_host: str) -> str:
        """The key of a reader: the groups for which a client at a host reads."""
        return f"korvet:{{{_encoded(self.name)}:@reader:{_encoded(client_id)}@{_encoded(client_host)}}}:groups"


LOBBY = Namespace("")
"""The keys of connections that have not chosen a tenant yet."""
