"""The acknowledgements of a ShareFetch or ShareAcknowledge for one partition: their check, and their shortest form.

Source: KafkaApis.validateAcknowledgementBatches, AcknowledgeType
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from korvet.store.shares.types import Acknowledgement, AcknowledgeType


class Batch(Protocol):
    """One acknowledgement of a request: a type for all of its offsets, or one for each."""

    @property
    def first_offset(self) -> int: ...
    @property
    def last_offset(self) -> int: ...
    @property
    def acknowledge_types(self) -> Sequence[int]: ...


def acknowledged(batches: Iterable[Batch], *, may_renew: bool) -> list[Acknowledgement] | None:
    """The acknowledgements in the order of the request, neighbours of one type joined; None for INVALID_REQUEST."""
    found: list[Acknowledgement] = []
    highest, before = AcknowledgeType.RENEW if may_renew else AcknowledgeType.REJECT, -1
    for batch in batches:
        first, last, types = batch.first_offset, batch.last_offset, batch.acknowledge_types
        if not before <= first <= last or not types or len(types) not in (1, last - first + 1):
            return None
        if not AcknowledgeType.GAP <= min(types) <= max(types) <= highest:
            return None
        before = last
        if len(types) == 1:
            _add(found, Acknowledgement(first, last, types[0]))
        else:
            for offset, type in enumerate(types, first):
                _add(found, Acknowledgement(offset, offset, type))
    return found


def _add(found: list[Acknowledgement], one: Acknowledgement) -> None:
    if found and found[-1].type == one.type and found[-1].last + 1 == one.first:
        found[-1] = found[-1]._replace(last=one.last)
    else:
        found.append(one)
