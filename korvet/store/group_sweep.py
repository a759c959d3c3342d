"""What nobody does who uses groups: let those go on whose members died without a word, and tidy up the index.

A group does what became due when somebody touches it. One that everybody abandoned would keep its members, and with
them its keys, for ever; and one that expired leaves its entry in the index. Every front-end sweeps; each step may be
repeated.

An entry is acted on only where two sweeps find it without a group: one alone may come between the index entry and the
group that is being made. Offsets of topics that are gone are looked for where topics came or went since the last sweep.
"""

from __future__ import annotations

from collections.abc import Set
from typing import Final
from uuid import UUID

import anyio
import structlog

from korvet.errors import KorvetError, StoreError
from korvet.store.groups import Groups

log = structlog.get_logger()

INTERVAL_S: Final = 600.0
"""Kafka's offsets.retention.check.interval.ms."""


async def keep_swept(groups: Groups) -> None:
    """Sweep every ten minutes, until cancelled."""
    suspects: Set[str] = frozenset()
    swept: Set[UUID] | None = None
    while True:
        await anyio.sleep(INTERVAL_S)
        try:
            suspects = await sweep(groups, suspects)
            swept = await sweep_offsets(groups, swept)
        except KorvetError as error:
            suspects = frozenset()
            log.warning("the sweep of groups was cut short", reason=str(error))


async def sweep(groups: Groups, suspects: Set[str]) -> Set[str]:
    """Act on groups whose members died, and on the suspects that have no group still.

    One that cannot be read does not keep the others; a line in the log tells of it.

    :returns: the entries that were found without a group for the first time.
    :raises StoreUnavailable, StoreFull: as soon as one call does.
    """
    dead, missing = await groups.neglected()
    for group_id in dead | (missing & suspects):
        try:
            await groups.tend(group_id)
        except StoreError as error:
            log.error("a group cannot be swept", group=group_id, reason=str(error))
    return missing - suspects


async def sweep_offsets(groups: Groups, swept: Set[UUID] | None) -> Set[UUID]:
    """Have groups forget what they committed for topics that are gone.

    :param swept: the topics that there were at the last time; None where it is not known.
    :returns: the topics that there are.
    :raises StoreUnavailable, StoreFull: as soon as one call does.
    """
    there = await groups.topic_ids()
    if there != swept:
        await groups.forget_former_topics()
    return there
