"""Losses: offsets that an archive skipped, because its user let it go on after a loss of data."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Final, Literal, TypeAlias

LossKind: TypeAlias = Literal["trimmed", "replaced", "unreadable"]
MOST_RANGES: Final = 10
"""The most ranges of a partition and kind that a proof keeps. Beyond them the oldest become one, with all between."""


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Loss:
    """Offsets of a partition from ``start`` up to but without ``end``.

    ``trimmed``: the broker removed them before they were archived, and the table lacks them. ``replaced``: the broker
    lost them after they were archived, so the table may have two records of one offset. ``unreadable``: no client can
    decode them, and the dead letters say why.
    """

    partition: int
    kind: LossKind
    start: int
    end: int

    def __str__(self) -> str:
        why = {
            "trimmed": "removed before they were archived",
            "replaced": "lost by the broker after they were archived",
            "unreadable": "left out, since no client can decode them",
        }
        return f"partition {self.partition}: offsets {self.start} up to {self.end} were {why[self.kind]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class UnreadableRange:
    """Offsets from ``start`` up to but without ``end`` that cannot be read."""

    partition: int
    start: int
    end: int
    reason: str

    @property
    def loss(self) -> Loss:
        """The records that a table lacks because of it."""
        return Loss(partition=self.partition, kind="unreadable", start=self.start, end=self.end)


def joined(losses: Iterable[Loss]) -> tuple[Loss, ...]:
    """The losses in order; ranges that touch are one, and each partition has at most `MOST_RANGES` of a kind."""
    found: list[Loss] = []
    for _, same in groupby(sorted(losses), key=lambda loss: (loss.partition, loss.kind)):
        ranges: list[Loss] = []
        for loss in same:
            if ranges and loss.start <= ranges[-1].end:
                ranges[-1] = _span(ranges[-1], loss)
            else:
                ranges.append(loss)
        excess = max(1, len(ranges) - MOST_RANGES + 1)
        found += [_span(ranges[0], ranges[excess - 1]), *ranges[excess:]]
    return tuple(found)


def _span(first: Loss, last: Loss) -> Loss:
    return replace(first, end=max(first.end, last.end))
