"""The sweep of groups that nobody uses: it takes out expired members, and removes index entries without a group.

A call to a group does what became due there. Nobody calls an abandoned group, so it would keep its members and its keys
for ever. An expired group leaves its entry in the index. One front-end has the turn to sweep; each step may be
repeated.

The sweep removes an entry only if it found no group twice: one sweep alone may come between the index entry and the
group that is being made. If topics came or went since the last sweep, it removes the offsets of deleted topics.
"""

from __future__ import annotations

from collections.abc import Set
from typing import Final
from uuid import UUID

import structlog

from korvet.errors import KorvetError, StoreError
from korvet.store.every import Steps, every
from korvet.store.groups.groups import Groups
from korvet.store.outcomes import Failures
from korvet.store.registry import SweepTurn, taking

log = structlog.get_logger()

INTERVAL_S: Final = 600.0
"""Kafka's offsets.retention.check.interval.ms."""


async def keep_swept(groups: Groups, turn: SweepTurn, steps: Steps | None = None) -> None:
    """Sweep every ten minutes while it is this front-end's turn, until cancelled."""
    suspects: Set[str] = frozenset()
    swept: Set[UUID] | None = None

    async def step() -> None:
        nonlocal suspects, swept
        async with taking(turn):
            failures: Failures = []
            # A sweep that is cut short leaves none.
            former, suspects = suspects, frozenset()
            found = await sweep(groups, former, failures)
            swept = await sweep_offsets(groups, swept, failures)
            suspects = found
            if failures:
                raise failures[0]

    await every(INTERVAL_S, step, "the sweep of groups was cut short", steps=steps)


async def sweep(groups: Groups, suspects: Set[str], failures: Failures) -> Set[str]:
    """Act on groups whose members expired, and on suspects that still have no group.

    An unreadable group keeps no other one, and a line in the log names it. Nor does a group whose server fails, and
    the failure is added to ``failures``.

    :returns: the entries without a group that were no suspects.
    :raises StoreUnavailable: the index of groups cannot be read.
    """
    dead, missing = await groups.administration.neglected(failures)
    for group_id in dead | (missing & suspects):
        try:
            await groups.administration.tend(group_id)
        except StoreError as error:
            log.error("a group cannot be swept", group=group_id, reason=str(error))
        except KorvetError as error:
            failures.append(error)
    return missing - suspects


async def sweep_offsets(groups: Groups, swept: Set[UUID] | None, failures: Failures) -> Set[UUID] | None:
    """Have groups forget the offsets of topics that are gone.

    A group whose server fails keeps no other one, and the failure is added to ``failures``.

    :param swept: the topics that there were at the last time; None if that is not known.
    :returns: the topics of this sweep; ``swept`` after a failure, so that the next sweep tries again.
    :raises StoreUnavailable: the catalog or the index of groups cannot be read.
    """
    there = await groups.offsets.topic_ids()
    if there != swept:
        unserved: Failures = []
        await groups.offsets.forget_former_topics(unserved)
        if unserved:
            failures += unserved
            return swept
    return there
