"""The groups of one namespace in parts, each with a module of its own."""

from __future__ import annotations

from korvet.redis.client import Store
from korvet.redis.wakeup import Wakeups
from korvet.store.calls import Calls, StateRoom
from korvet.store.catalog.catalog import Catalog
from korvet.store.groups.administration import Administration
from korvet.store.groups.call import GroupCalls
from korvet.store.groups.classic import ClassicGroups
from korvet.store.groups.consumer import ConsumerGroups
from korvet.store.groups.held_offsets import HeldOffsets
from korvet.store.groups.offsets import Offsets
from korvet.store.groups.redis_mirror import RedisMirror
from korvet.store.groups.redis_mirror_calls import RedisGroupCalls
from korvet.store.groups.redis_mirror_deletion import Deletion
from korvet.store.groups.redis_mirror_readers import Readers
from korvet.store.groups.share import ShareGroups
from korvet.store.keys import Namespace
from korvet.store.log.partitions.partitions import Partitions
from korvet.store.outages import Outages
from korvet.store.shares.shares import Shares
from korvet.store.tenants import TenantLimit


class Groups:
    """The groups of one namespace."""

    def __init__(
        self, namespace: Namespace, store: Store, catalog: Catalog, wakeups: Wakeups, outages: Outages, log: Partitions
    ) -> None:
        def most() -> int:
            return catalog.at_most("korvet.max.groups", TenantLimit.GROUPS)

        self.room = StateRoom()
        """The room of groups, readers and transactions in Redis."""
        calls = GroupCalls(namespace, store, outages, most, self.room)
        self.outages = outages
        self.index = calls.index
        redis_groups = RedisGroupCalls(namespace, store, calls)
        self.mirror = RedisMirror(store, redis_groups)
        self.readers = Readers(namespace, redis_groups, self.mirror, self.room)
        self.offsets = Offsets(calls, catalog, self.mirror)
        self.held_offsets = HeldOffsets(calls, store, catalog, self.offsets)
        self.consumers = ConsumerGroups(calls, catalog)
        self.share_partitions = Shares(log, Calls(store.whole, outages, self.room))
        self.shares = ShareGroups(calls, catalog, log, self.consumers, self.share_partitions)
        self.share_partitions.group_uid = self.shares.uid_of
        self.classic = ClassicGroups(calls, catalog, wakeups, self.consumers)
        deletion = Deletion(calls, redis_groups, self.mirror)
        self.administration = Administration(calls, store, self.offsets, deletion, self.shares)
