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


class PartitionKeys(NamedTuple):
    """Keys of one partition, in the order of every log function's KEYS."""

    log: str
    meta: str
    producers: str


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


def placed_batch(log: str, next_offset: int) -> str:
    """Where the batch of an entry lies that does not carry it itself."""
    return f"{log}:{next_offset}"


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

    def group(self, group_id: str) -> GroupKeys:
        unit = f"korvet:{{{_encoded(self.name)}:group:{_encoded(group_id)}}}"
        return GroupKeys(f"{unit}:group", f"{unit}:members", f"{unit}:sessions", f"{unit}:static", f"{unit}:offsets")

    def attached_group(self, group_id: str) -> AttachedGroupKeys:
        """The keys of `group`, and the one beside them that knows its Redis groups."""
        keys = self.group(group_id)
        return AttachedGroupKeys(*keys, f"{keys.group.removesuffix(':group')}:attached")

    def reader(self, client_id: str, client_host: str) -> str:
        """The groups for which a client at a host reads."""
        return f"korvet:{{{_encoded(self.name)}:reader:{_encoded(client_id)}@{_encoded(client_host)}}}:groups"
