"""The quotas of a namespace at one front-end: the settings, and what all front-ends together have used.

Buckets in memory decide, so a request makes no call to Redis. A few times a second the front-end reports its clients'
use, and Redis returns each bucket's level. So all front-ends together exceed a quota by at most the use between two
reports, which clients then pay back. A front-end without use reports nothing.

While Redis is away, each of n known front-ends lets through 1/n of a quota.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from math import inf
from typing import Final

import anyio
import structlog

from korvet.errors import KorvetError
from korvet.quotas.entity import Entity, field_of, number_text, parsed_field
from korvet.quotas.meters import Meters
from korvet.quotas.rules import NO_CEILINGS, Rules, Settings, Windows
from korvet.redis.client import Store
from korvet.redis.wakeup import Wakeups
from korvet.store.followed import Followed
from korvet.store.keys import Namespace
from korvet.store.security.quotas import StoredBuckets, Use

log = structlog.get_logger()

_REPORT_S: Final = 0.25
_PATIENCE_S: Final = 3.0
"""Seconds to wait for an answer."""
_MOST_REPORTED: Final = 1000
"""The most buckets of one report; the rest come with the next one."""

Changes = Mapping[tuple[Entity, str], float | None]
"""New values of quotas by entity and kind; None deletes one."""


class Quotas(Followed):
    """The quotas of a namespace.

    ``meters`` is None while the namespace has neither quotas nor ceilings.

    :param front_ends: returns the last known number of front-ends.
    :raises StoreUnavailable, StoreFull, StoreError: `refresh` and `alter`.
    """

    def __init__(
        self, namespace: Namespace, store: Store, wakeups: Wakeups, windows: Windows, front_ends: Callable[[], int]
    ) -> None:
        self._buckets = StoredBuckets(namespace, store)
        complaint = "the quotas cannot be read; those last known count"
        super().__init__(store, wakeups, namespace.security, "quotas", complaint)
        self.meters: Meters | None = None
        self.settings: Settings = {}
        self._ceilings = NO_CEILINGS
        self._windows = windows
        self._front_ends = front_ends
        self._used = asyncio.Event()

    # ------------------------------------------------------------------ the settings

    async def _take(self, fields: Sequence[bytes]) -> None:
        self._count(parse_settings(dict(zip(fields[::2], fields[1::2], strict=True))))

    def limit(self, ceilings: Mapping[str, float]) -> None:
        """Replace the ceilings of the whole namespace, by quota."""
        if ceilings != self._ceilings:
            self._ceilings = ceilings
            self._count(self.settings)

    def _count(self, settings: Settings) -> None:
        self.settings = settings
        if not settings and not self._ceilings:
            self.meters = None
            return
        rules = Rules(settings, self._windows, self._ceilings)
        if self.meters is None:
            self.meters = Meters(rules, self._used.set)
        else:
            self.meters.rules = rules

    async def alter(self, changes: Changes) -> int:
        """Set and delete at most `korvet.store.security.quotas.MOST_AT_ONCE` quotas, all or none of them.

        :returns: Kafka's code: 0, INVALID_REQUEST or POLICY_VIOLATION.
        """
        texts = [
            text
            for (entity, key), number in changes.items()
            for text in (field_of(entity, key), "" if number is None else number_text(number))
        ]
        (code,) = await self._change("korvet_quotas_alter", changes=texts)
        return int(code)

    # ------------------------------------------------------------------ what clients use

    async def report(self) -> None:
        """Report use until cancelled: at once, then up to four times a second."""
        while True:
            await self._used.wait()
            self._used.clear()
            meters = self.meters
            if meters is not None:
                await self._report(meters)
                if meters.has_reports:
                    self._used.set()
            await anyio.sleep(_REPORT_S)

    async def _report(self, meters: Meters) -> None:
        """Report once. A report without an answer is not repeated: Redis may have counted it."""
        reports = list(meters.reports(_MOST_REPORTED))
        uses = [Use(limit.bucket, used, limit.rate, limit.capacity) for limit, used in reports]
        levels: Mapping[str, float] | None = None
        with suppress(KorvetError), anyio.move_on_after(_PATIENCE_S):
            levels = await self._buckets.use(uses)
        if levels is not None:
            meters.heard(levels)
        self._note_share(meters, is_away=levels is None)

    def _note_share(self, meters: Meters, *, is_away: bool) -> None:
        share = 1 / max(1, self._front_ends()) if is_away else 1.0
        if share != meters.share:
            meters.share = share
            if is_away:
                log.warning("redis cannot add up what clients use; quotas are divided", share=f"{share:.0%}")


def parse_settings(texts: Mapping[bytes, bytes]) -> dict[Entity, dict[str, float]]:
    """Parse settings from Redis; fields that korvet did not write are ignored."""
    settings: dict[Entity, dict[str, float]] = {}
    for field, text in texts.items():
        with suppress(ValueError):
            parsed, number = parsed_field(field.decode()), float(text)
            if parsed is not None and 0 < number < inf:
                settings.setdefault(parsed[0], {})[parsed[1]] = number
    return settings
