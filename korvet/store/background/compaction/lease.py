"""The lease of a partition's compaction: one front-end at a time builds the stream that takes the log's place."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kio.schema.errors import ErrorCode

from korvet.redis.client import Named, Purpose
from korvet.store.keys import spare_stream
from korvet.store.log.state.partition import Partition

if TYPE_CHECKING:
    from korvet.store.log.log import Log

LEASE_MS = 30_000
_RENEW_S = 5.0
_MOST_CALLS = 1_000_000


class Lost(Exception):
    """The partition or the lease has changed, so the run's decisions are void."""


class Lease:
    """The right to compact a partition, under a token. ``keys`` are those of the compaction functions."""

    def __init__(self, log: Log, partition: Partition) -> None:
        self._log = log
        self._partition = partition
        self.token = log.next_token()
        self.keys = (*partition.keys, spare_stream(partition.keys.log))
        self._renew_at = 0.0

    async def acquire(self, *, is_kept: bool = False) -> bool:
        """Take the lease; false if another front-end has it.

        :param is_kept: only renew it; false also if it was lost meanwhile.
        :raises StoreUnavailable, StoreFull, StoreError:
        """
        self._renew_at = self._log.now() + _RENEW_S
        for _ in range(_MOST_CALLS):
            code, status = await self._call(
                "korvet_log_compaction_begin", lease_ms=LEASE_MS, is_kept=1 if is_kept else None
            )
            if code != ErrorCode.none or status == b"busy":
                return False
            if status == b"ready":
                return True
        return False

    async def renew(self) -> None:
        """Renew the lease when due.

        :raises Lost: another front-end has it.
        :raises StoreUnavailable, StoreError:
        """
        if self._log.now() >= self._renew_at and not await self.acquire(is_kept=True):
            raise Lost

    async def end(self, *, run_id: str | None = None, epoch: int | None = None, cleaned: int | None = None) -> None:
        """Remove leftovers, and give the lease back.

        :param cleaned: the offset below which the run read each key, on this server and in this epoch.
        :raises StoreUnavailable, StoreError:
        """
        for _ in range(_MOST_CALLS):
            _, more = await self._call("korvet_log_compaction_end", run_id=run_id, epoch=epoch, cleaned=cleaned)
            if not more:
                return

    async def _call(self, function: str, /, **named: Named) -> Any:
        return await self._log.store.call_function(
            Purpose.APPEND, function, self.keys, topic_id=self._partition.topic_id, token=self.token, **named
        )
