"""The restoration of a partition from its snapshot in the tier: the calls of `lua/2-log/tier_restore.lua`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from korvet.errors import LostTier, StoreError
from korvet.redis.client import Purpose, Store
from korvet.store.contract import GONE, LOST
from korvet.store.keys import Namespace


class Wanted(NamedTuple):
    """What a snapshot says of a partition; ``members`` are texts, each after the offset behind it."""

    topic: str
    topic_id: str
    partition: int
    token: str
    leader_epoch: int
    epochs: str
    log_start: int
    tier_end: int
    members: Sequence[tuple[int, str]]


class Restored(NamedTuple):
    """create, move, list, whole, conflict, or gone (the keys are another topic's); and the log's start and end before,
    -1 if there was none."""

    status: str
    log_start: int
    log_end: int


async def restore(store: Store, namespace: Namespace, wanted: Wanted, *, only_looks: bool) -> Restored:
    """Restore a partition, or say what that would do; may be repeated.

    :raises LostTier: the members have a gap.
    :raises StoreUnavailable, StoreFull, StoreError:
    """
    log = namespace.transaction_log(wanted.topic, wanted.partition)
    keys = (*log, namespace.tier(wanted.topic, wanted.partition).tier)
    members = [part for next_offset, text in wanted.members for part in (str(next_offset), text)]
    step = "look" if only_looks else "restore"
    outcome: Restored | None = None
    more = 1
    while outcome is None or more:
        code, status, start, end, more = await store.call_function(
            Purpose.APPEND, "korvet_tier_restore", keys,
            topic_id=wanted.topic_id, step=step, token=wanted.token, leader_epoch=wanted.leader_epoch,
            epochs=wanted.epochs, log_start=wanted.log_start, tier_end=wanted.tier_end, members=members,
        )  # fmt: skip
        if code == GONE:
            return Restored("gone", -1, -1)
        if code == LOST:
            raise LostTier(f"the snapshot of {wanted.topic}-{wanted.partition} has a gap between its segments")
        outcome = outcome or Restored(status.decode(), start, end)
    if only_looks or outcome.status == "conflict":
        return outcome
    return outcome if await _trimmed(store, log, wanted) else Restored("gone", -1, -1)


async def _trimmed(store: Store, log: Sequence[str], wanted: Wanted) -> bool:
    """Raise the log start to the snapshot's, so that deleted records stay deleted."""
    code, more = 0, 1
    while more:
        code, _, more = await store.call_function(
            Purpose.APPEND, "korvet_log_trim", log, topic_id=wanted.topic_id, offset=wanted.log_start
        )
        if code not in (0, GONE):
            raise StoreError(f"the log start of {wanted.topic}-{wanted.partition} cannot be raised: code {code}")
    return bool(code == 0)
