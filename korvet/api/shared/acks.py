"""The conditions for sending a batch: room for it and, if acks is all, replicas.

Source: Partition.appendRecordsToLeader
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Final

from korvet.api.shared.context import Context
from korvet.errors import KorvetError
from korvet.store.log.partition import Partition

ALL: Final = -1


def lacks_replicas(ctx: Context, request: Any, partition: Partition) -> bool | None:
    """Whether too few servers are in sync for a Produce request's acks; None if that is not known."""
    log = ctx.frontend.log
    copies = log.limits(partition).copies
    if copies == 1 or request.acks != ALL:
        return False
    return log.replicas.are_too_few(partition, copies)


async def ask_for_replicas(ctx: Context, request: Any, partition: Partition) -> None:
    """Count the replicas if `lacks_replicas` does not know; if that fails, the wait after the append shows it."""
    if lacks_replicas(ctx, request, partition) is None:
        with suppress(KorvetError):
            await ctx.frontend.log.replicas.ask(partition)


async def ask_for_room(ctx: Context, partition: Partition) -> None:
    """Ask a partition's server for its memory if it had hardly any left."""
    reserve = ctx.frontend.log.reserve
    if reserve.is_used_up(partition.keys.log):
        with suppress(KorvetError):
            await reserve.ask(partition.keys.log)
