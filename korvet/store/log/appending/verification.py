"""The verification of one request's transactional batches by a single call to their coordinator."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from korvet.errors import KorvetError
from korvet.redis.reply import in_task
from korvet.store.log.appending.append import Appending
from korvet.store.log.appending.membership import Membership


async def verify_together(appendings: Sequence[Appending]) -> None:
    """Verify all batches that Redis answered with VERIFY by one call, and send them again in one turn.

    :param appendings: one request's batches that belong to a transaction, at least one.

    Raises nothing: a failure is the outcome of its batch. A batch that gets VERIFY again is verified alone.
    """
    for one in appendings:
        with suppress(KorvetError):
            await one.reply
    if not any(one.membership_to_ask for one in appendings):
        return
    await in_task()
    by_membership: dict[Membership, list[Appending]] = {}
    for one in appendings:
        if (membership := one.membership_to_ask) is not None:
            by_membership.setdefault(membership, []).append(one)
    for membership, some in by_membership.items():
        try:
            ordinals = await membership.ordinals([one.partition for one in some])
        except KorvetError as error:
            for one in some:
                one.refuse(error, error)
            continue
        for one, (code, ordinal) in zip(some, ordinals, strict=True):
            one.send_verified(code, ordinal)
