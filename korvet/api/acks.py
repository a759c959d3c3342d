"""What there must be before a batch is sent: room for it and, where acks is all, replicas.

Source: Partition.appendRecordsToLeader
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Final

from korvet.api.context import Context
from korvet.errors import KorvetError
from korvet.store.log import Partition

ALL: Final = -1


def lacks_replicas(ctx: Context, request: Any, partition: Partition) -> bool | None:
    """Whether too few servers are in sync for a Produce request's acks; None where that is not known."""
    log = ctx.frontend.log
    copies = log.limits(partition).copies
    if copies == 1 or request.acks != ALL:
        return False
    return log.replicas.are_too_few(partition, copies)


async def ask_for_replicas(ctx: Context, request: Any, partition: Partition) -> None:
    """Find out what `lacks_replicas` does not know. Where that fails, the wait after the append will show it."""
    if lacks_replicas(ctx, request, partition) is None:
        with suppress(KorvetError):
            await ctx.frontend.log.replicas.ask(partition)


async def ask_for_room(ctx: Context, partition: Partition) -> None:
    """Where a partition's server had hardly any memory left, see whether that is still so."""
    reserve = ctx.frontend.log.reserve
    if reserve.is_used_up(partition.keys.log):
        with suppress(KorvetError):
            await reserve.ask(partition.keys.log)
