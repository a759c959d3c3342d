"""The identity of a tier: a random id, in the first owner object of a namespace and in the catalog in Redis.

A front-end with another directory or bucket than the others finds no objects there that Redis lists. Without the
comparison it would begin a second tier, and take the objects of the first one for lost.
"""

from __future__ import annotations

from korvet.configs.types import is_tiered
from korvet.store.catalog.catalog import Catalog
from korvet.tier.objects import Objects, OtherTier


async def checked_identity(objects: Objects, namespace: str, catalog: Catalog, known: str = "") -> tuple[str, str]:
    """The ids of a namespace's tier in the catalog and in the store; empty where it has none yet.

    :param known: that in the store, if it was read before, which saves a request.
    :raises OtherTier: they differ, and topics are in the tier of the catalog.
    :raises TierAway, StoreUnavailable, StoreError:
    """
    named = await catalog.tier()
    found = known if known and known == named else await objects.identity(namespace)
    if named and named != found:
        await catalog.refresh()
        if any(is_tiered(one.configs) for one in catalog.topics()):
            raise OtherTier(other_tier(objects, namespace))
    return named, found


def other_tier(objects: Objects, namespace: str) -> str:
    """What is wrong, and what to do."""
    return (
        f"{objects.name} is another tier than the one that holds the topics of namespace {namespace}, or it was "
        "emptied: give all front-ends the same --tier, a bucket or one directory that all machines mount"
    )
