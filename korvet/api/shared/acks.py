"""The conditions for sending a batch: room for it and, if acks is all, replicas and a disk.

Source: Partition.appendRecordsToLeader
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Final

from korvet.api.shared.context import Context
from korvet.errors import KorvetError
from korvet.store.log.partition import Partition

ALL: Final = -1


def lacking(ctx: Context, request: Any, partition: Partition) -> str | None:
    """Why enough servers, or a disk, cannot acknowledge a batch of a Produce request; empty if they can, None if that
    is not known."""
    log = ctx.frontend.log
    limits = log.limits(partition)
    if not limits.is_held or request.acks != ALL:
        return ""
    return log.replicas.lacking(partition.keys.meta, limits.copies, on_disk=limits.is_synced)


async def ask_for_acks(ctx: Context, request: Any, partition: Partition) -> None:
    """Ask the server if `lacking` does not know; if that fails, the wait after the append shows it."""
    if lacking(ctx, request, partition) is None:
        log = ctx.frontend.log
        with suppress(KorvetError):
            await log.replicas.ask(partition.keys.meta, on_disk=log.limits(partition).is_synced)


async def ask_for_room(ctx: Context, partition: Partition) -> None:
    """Ask a partition's server for its memory if it had hardly any left."""
    reserve = ctx.frontend.log.reserve
    if reserve.is_used_up(partition.keys.log):
        with suppress(KorvetError):
            await reserve.ask(partition.keys.log)
