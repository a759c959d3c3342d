"""Leader epochs of a log: their offsets, and the check of a client's current epoch."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

from korvet.codes import FENCED_LEADER_EPOCH, UNKNOWN_LEADER_EPOCH
from korvet.errors import StoreError


class EpochEnd(NamedTuple):
    """The end of a leader epoch, to which a fetcher must truncate (KIP-595)."""

    epoch: int
    end_offset: int


UNDEFINED = EpochEnd(-1, -1)

Epochs = Sequence[tuple[int, int]]
"""(epoch, its first offset), oldest first."""


def parse_epochs(text: bytes) -> Epochs:
    """The meta hash's ``epochs``: ``epoch:start_offset,…``.

    :raises StoreError: the text is malformed.
    """
    pairs = (pair.partition(b":") for pair in text.split(b",") if pair)
    try:
        return [(int(epoch), int(start)) for epoch, _, start in pairs]
    except ValueError:
        raise StoreError(f"a partition's field epochs is not `epoch:offset,…`: {text!r}") from None


def check_leader_epoch(claimed: int, current: int) -> int:
    """The Kafka error code for a client's claimed epoch, -1 for none (Partition.checkCurrentLeaderEpoch)."""
    if claimed in (-1, current):
        return 0
    return FENCED_LEADER_EPOCH if claimed < current else UNKNOWN_LEADER_EPOCH


def end_of_epoch(epochs: Epochs, epoch: int, log_end: int) -> EpochEnd:
    """The end of an epoch, or of the last earlier one in this log (LeaderEpochFileCache.endOffsetFor)."""
    if epoch == -1 or not epochs or epoch > epochs[-1][0]:
        return UNDEFINED
    if epoch == epochs[-1][0]:
        return EpochEnd(epoch, log_end)
    after = bisect_right(epochs, epoch, key=lambda known: known[0])
    known_epoch = epochs[after - 1][0] if after else epoch
    return EpochEnd(known_epoch, epochs[after][1])


def epoch_of_offset(epochs: Epochs, offset: int) -> int:
    """The epoch of an offset, written or not; -1 if unknown."""
    after = bisect_right(epochs, offset, key=lambda known: known[1])
    return epochs[after - 1][0] if after else -1
