"""A table that follows the raw one: the offsets that it lacks, and its proof once it has them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from korvet.pipeline.plan.proofs import Proven

Ranges = Mapping[int, tuple[int, int]]
"""Offsets by partition: begin, and end without it."""


def lacking(has: Proven, raw: Proven) -> dict[int, tuple[int, int]]:
    """The offsets that a table lacks of the raw one."""
    begins = {number: has.offsets.get(number, 0) for number in raw.offsets}
    return {number: (begins[number], end) for number, end in raw.offsets.items() if end > begins[number]}


def had(has: Proven, raw: Proven) -> dict[int, tuple[int, int]]:
    """The offsets that a table has of the raw one, from 0 on."""
    ends = {number: min(has.offsets.get(number, 0), end) for number, end in raw.offsets.items()}
    return {number: (0, end) for number, end in ends.items() if end}


def followed(has: Proven | None, raw: Proven, writer: str) -> Proven:
    """The proof of a table that has got all that the raw one has. It is no lower than before, if the raw one is."""
    before = {} if has is None else has.offsets
    ahead = {number: offset for number, offset in before.items() if offset > raw.offsets.get(number, -1)}
    epochs = {number: epoch for number, epoch in raw.leader_epochs.items() if number not in ahead}
    if has is not None:
        epochs |= {number: epoch for number, epoch in has.leader_epochs.items() if number in ahead}
    return replace(raw, offsets={**raw.offsets, **ahead}, leader_epochs=epochs, checkpoint=writer, is_claim=False)


def within(ranges: Ranges) -> str:
    """A condition of SQL on the columns ``partition`` and ``offset``; false of no ranges."""
    condition = " or ".join(
        f"(partition = {number} and offset >= {begin} and offset < {end})" for number, (begin, end) in ranges.items()
    )
    return condition or "false"
