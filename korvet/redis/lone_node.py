"""The refusal of a URL for one server that is one of several cluster nodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from korvet.errors import KorvetError, StoreError
from korvet.redis.address import RedisUrl
from korvet.redis.client import Purpose, Store
from korvet.redis.topology import SLOTS


def has_all_slots(ranges: Sequence[Any]) -> bool:
    """True if the node that answered CLUSTER SLOTS with ``ranges`` has all slots."""
    covered = sum(int(last) - int(first) + 1 for first, last, *_ in ranges)
    return covered == SLOTS and len({tuple(primary[:2]) for _, _, primary, *_ in ranges}) == 1


def wanted_url(url: RedisUrl) -> str:
    """A sentence for the user with the right URL."""
    scheme = "rediss+cluster" if url.tls else "redis+cluster"
    nodes = ",".join(map(str, url.addresses))
    return f"this is a node of a cluster, and other nodes hold slots of it: name it {scheme}://{nodes}"


async def refuse_lone_node(store: Store) -> None:
    """Refuse a store whose URL names one of several nodes of a cluster.

    :raises KorvetError: the URL names such a node.
    :raises StoreUnavailable: the server does not answer.
    """
    if store.url.kind == "cluster" or store.server.get("cluster_enabled") != "1":
        return
    try:
        is_whole = has_all_slots(await store.call(Purpose.COORDINATE, "", "CLUSTER", "SLOTS"))
    except StoreError:
        # A user without CLUSTER SLOTS could not use a cluster anyway.
        is_whole = False
    if not is_whole:
        raise KorvetError(f"{store.url}: {wanted_url(store.url)}")
