"""The end of a log without a call to Redis: its offset, and the batches before it.

The partition's channel announces the leader epoch and the end after each append. While the subscription is up, the last
message was true a moment ago. Without a message, so is any reply of Redis since the subscription began. If the epoch is
the known one, a reader at that end gets an empty answer, and a reader below it gets recent batches. The known values
must have been read since the subscription began and since the last trim or deletion (`Wakeups.since`): the message of
the next append hides theirs.

A read_committed reader gets only batches without a transaction, which need no list of aborted ones.

The reply to an append here often arrives before its message. If the batch directly follows the last announced end,
nothing came in between. Without a transaction, the batch does not affect the bound of the last stable offset. So the
message is known to the byte, and readers need not wait for it.
"""

from __future__ import annotations

from typing import NamedTuple

from korvet.store.log.epochs import check_leader_epoch
from korvet.store.log.partition import Meta, Partition
from korvet.store.log.partition_read import PartitionRead
from korvet.store.log.partitions import Partitions
from korvet.store.log.room import FetchRoom, Want
from korvet.wire.batch import TRANSACTIONAL, placed_in_log


class Ends(NamedTuple):
    """A log's end and its last stable offset; -1 if unknown."""

    end: int
    stable: int


_UNKNOWN_ENDS = Ends(-1, -1)
_ATTRIBUTES_AT = 22  # the lower byte of them


def stands_at_end(log: Partitions, want: Want) -> bool:
    """True if there is certainly nothing to read; no I/O."""
    end, stable = known_ends(log, want.partition)
    return (stable if want.is_committed else end) <= want.offset <= end


def known_ends(log: Partitions, partition: Partition) -> Ends:
    """The ends that the partition's channel last announced, if in the epoch known here."""
    message = log.wakeups.latest(partition.channel)
    if message is None or partition.epoch < 0 or partition.since != log.wakeups.since(partition.channel):
        return _UNKNOWN_ENDS
    try:
        epoch, end, *stable = map(int, message.split(b" "))
    except ValueError:
        # Any client may publish there.
        return _UNKNOWN_ENDS
    return Ends(end, stable[0] if stable else end) if epoch == partition.epoch else _UNKNOWN_ENDS


def tell_end(log: Partitions, partition: Partition, epoch: int, base: int, end: int) -> None:
    """Announce a local append without a transaction to readers, before the channel's message."""
    message, before = log.wakeups.latest(partition.channel), b"%d %d" % (epoch, base)
    if message is not None and (message == before or message.startswith(before + b" ")):
        log.wakeups.expect(partition.channel, message, b"%d %d" % (epoch, end) + message[len(before) :])


def learn_ends(log: Partitions, partition: Partition, meta: Meta, since: int) -> None:
    """Keep the ends that Redis returned for later readers, because a log may have no message for long.

    :param since: `Wakeups.since` at the time of the read.
    """
    open_from = b"" if meta.stable == meta.end else b" %d" % meta.stable
    log.wakeups.learn(partition.channel, since, b"%d %d" % (meta.epoch, meta.end) + open_from)


def read_latest(log: Partitions, want: Want, room: FetchRoom) -> PartitionRead | None:
    """The answer from memory; None if Redis must be read."""
    partition, offset = want.partition, want.offset
    end, stable = known_ends(log, partition)
    if not max(0, partition.start) <= offset <= end or want.last_fetched_epoch >= 0:
        return None
    if (code := check_leader_epoch(want.leader_epoch, partition.epoch)) != 0:
        return PartitionRead(partition.index, code)
    stable = max(stable, partition.start)
    found = PartitionRead(partition.index, 0, end, partition.start, stable)
    until = stable if want.is_committed else end
    if offset >= until:
        # The message of an append or marker that Redis has already answered may still be in flight.
        if end < (partition.end if until == end else partition.marked_end):
            return None
        partition.watched_at = log.now()
        return found
    limit = room.limit(want.max_bytes)
    while offset < until and (batch := partition.recent.get(offset)) is not None:
        if want.is_committed and batch.data[_ATTRIBUTES_AT] & TRANSACTIONAL:
            break
        size_bytes = found.size_bytes + len(batch.data)
        if size_bytes > limit and (found.size_bytes or not room.is_empty):
            room.take(found.size_bytes)
            found.is_cut = room.is_cut
            return found
        # More bytes must be reserved first. A read from Redis finds how many.
        if batch.leader_epoch != partition.epoch or size_bytes > room.covered_bytes:
            return None
        found.records += placed_in_log(batch.data, offset, batch.leader_epoch)
        found.size_bytes = size_bytes
        offset = batch.next_offset
    if offset < until:
        # Some batches are not in memory. A reader that waits for more bytes than the rest would wait for ever.
        return None
    partition.watched_at = log.now()
    room.take(found.size_bytes)
    return found
