"""Leader epochs of a log: which offsets were written in which, and what a client's idea of the current one is worth."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from kio.schema.errors import ErrorCode

from korvet.wire.fetch_response import EpochEnd

UNDEFINED = EpochEnd(-1, -1)
_FENCED_LEADER_EPOCH = int(ErrorCode.fenced_leader_epoch)
_UNKNOWN_LEADER_EPOCH = int(ErrorCode.unknown_leader_epoch)

Epochs = Sequence[tuple[int, int]]
"""(epoch, its first offset), oldest first."""


def parse_epochs(text: bytes) -> Epochs:
    """The meta hash's ``epochs``: ``epoch:start_offset,…``."""
    pairs = (pair.partition(b":") for pair in text.split(b",") if pair)
    return [(int(epoch), int(start)) for epoch, _, start in pairs]


def check_leader_epoch(claimed: int, current: int) -> int:
    """The Kafka error code for a client's idea of the leader epoch, -1 for none (Partition.checkCurrentLeaderEpoch)."""
    if claimed in (-1, current):
        return 0
    return _FENCED_LEADER_EPOCH if claimed < current else _UNKNOWN_LEADER_EPOCH


def end_of_epoch(epochs: Epochs, epoch: int, log_end: int) -> EpochEnd:
    """Where an epoch ends, or the last one before it that this log knows (LeaderEpochFileCache.endOffsetFor)."""
    if epoch == -1 or not epochs or epoch > epochs[-1][0]:
        return UNDEFINED
    if epoch == epochs[-1][0]:
        return EpochEnd(epoch, log_end)
    after = bisect_right(epochs, epoch, key=lambda known: known[0])
    known_epoch = epochs[after - 1][0] if after else epoch
    return EpochEnd(known_epoch, epochs[after][1])


def epoch_of_offset(epochs: Epochs, offset: int) -> int:
    """The epoch in which an offset was or will be written; -1 when none is known."""
    after = bisect_right(epochs, offset, key=lambda known: known[1])
    return epochs[after - 1][0] if after else -1
