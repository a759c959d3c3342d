"""Damage to a partition's keys, by a foreign client or a loss. It affects only that partition. One log line names the
topic, partition, entry and the repairing command.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

import structlog

from korvet.configs.types import is_tiered
from korvet.errors import DamagedLog, KorvetError, StoreError
from korvet.rate_limited_log import LineBudget
from korvet.redis.client import Purpose, Store
from korvet.store.damaged_keys import repair_of, type_of
from korvet.store.log.state.entries import FOREIGN, CorruptEntry
from korvet.store.log.state.partition import Partition

logger = structlog.get_logger()

_FOREIGN_ENTRY = re.compile(r"entry (\d+-\d+) is not one of korvet's")
_LOST = re.compile(r"has lost its entries from offset \d+ to (\d+)")
_BEHIND_THE_END = "equal or smaller than the target stream top item"


class Damage:
    """The damage of a store's partitions, each logged once a minute."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._budget = LineBudget(1, 60.0)

    async def report(self, partition: Partition, error: StoreError) -> DamagedLog:
        """Log the damage and its repair. Returns the error to raise."""
        found = _FOREIGN_ENTRY.search(str(error))
        if found and not isinstance(error, CorruptEntry):
            error = CorruptEntry(partition.keys.log, found[1], FOREIGN)
        reason = error.problem if isinstance(error, CorruptEntry) else str(error)
        if self._budget.take((partition.keys.log, str(error))) is not None:
            try:
                entry, repair = await self._repair(partition, error)
            except KorvetError:
                entry, repair = "", ""
            logger.error(
                "a partition cannot be used as it is",
                topic=partition.topic.name, partition=partition.index, reason=reason,
                **({"entry": entry} if entry else {}), **({"repair": repair} if repair else {}),
            )  # fmt: skip
        return error if isinstance(error, DamagedLog) else DamagedLog(reason)

    async def _repair(self, partition: Partition, error: StoreError) -> tuple[str, str]:
        """The entry to remove, or an empty text, and the command that repairs the damage."""
        keys = partition.keys
        entry = error.entry if isinstance(error, CorruptEntry) else ""
        if not entry and _BEHIND_THE_END in str(error):
            entry = await self._last_id(keys.log)
        if entry:
            return entry, f"redis-cli FCALL korvet_log_repair 2 '{keys.log}' '{keys.meta}' {entry}"
        if repair := repair_of(str(error)):
            return "", repair
        if (lost := _LOST.search(str(error))) and not is_tiered(partition.topic.configs):
            # Of a tiered topic a trim would delete the segments, too.
            at = f"--partition {partition.index} --before {lost[1]}"
            return "", f"korvet topics trim '{partition.topic.name}' {at} --execute"
        if "WRONGTYPE" in str(error):
            wrong = await self._of_the_wrong_type(partition.transaction_keys)
            return "", f"redis-cli DEL {shlex.join(wrong)}" if wrong else ""
        return "", ""

    async def _last_id(self, log_key: str) -> str:
        flat = await self._store.call(Purpose.READ, log_key, "XINFO", "STREAM", log_key)
        last: bytes = dict(zip(flat[::2], flat[1::2], strict=True))[b"last-generated-id"]
        return last.decode()

    async def _of_the_wrong_type(self, keys: Sequence[str]) -> Sequence[str]:
        replies = [self._store.call(Purpose.READ, key, "TYPE", key) for key in keys]
        kinds = [await one for one in replies]
        return [key for key, kind in zip(keys, kinds, strict=True) if kind.decode() not in (type_of(key), "none")]
