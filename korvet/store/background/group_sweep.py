"""The sweep of abandoned groups: it removes expired members, and index entries without a group.

Each call to a group does the group's due work. An abandoned group gets no calls, so it would keep its members and keys
for ever. An expired group leaves its entry in the index. One front-end has the turn to sweep; each step is repeatable.

The sweep removes an entry only if two sweeps in a row found no group: a single one may fall between the making of the
entry and of the group. If topics came or went since the last sweep, it also removes the offsets of deleted topics.
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
            # An interrupted sweep leaves none.
            former, suspects = suspects, frozenset()
            found = await sweep(groups, former, failures)
            swept = await sweep_offsets(groups, swept, failures)
            suspects = found
            if failures:
                raise failures[0]

    await every(INTERVAL_S, step, "the sweep of groups was cut short", steps=steps)


async def sweep(groups: Groups, suspects: Set[str], failures: Failures) -> Set[str]:
    """Act on groups with expired members, and on suspects that still have no group.

    The sweep skips and logs an unreadable group. It skips a group on a failing server and adds the failure to
    ``failures``.

    :returns: new suspects, the entries without a group.
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
    """Remove the offsets of deleted topics from groups.

    The sweep skips a group on a failing server and adds the failure to ``failures``.

    :param swept: the topics at the last sweep; None if unknown.
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
