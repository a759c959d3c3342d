"""The ends of a log without a question to its source, and what else is as current as they are.

The partition's channel announces the leader epoch and the end after each append. While the subscription is up, the last
message was true a moment ago. Without a message, so is any reply of Redis since the subscription began. The known
values must be of the announced epoch, and have been read since the subscription began and since the last trim,
compaction or deletion (`Wakeups.since`): the message of the next append hides theirs. This is the one rule by which a
front-end answers out of its memory: for a reader at the end, and for entries (`korvet.store.log.memory.cache`).

The reply to an append here often arrives before its message. If the batch directly follows the last announced end,
nothing came in between. Without a transaction, the batch does not affect the bound of the last stable offset. So the
message is known to the byte, and readers need not wait for it.
"""

from __future__ import annotations

from korvet.store.log.memory.room import Want
from korvet.store.log.partitions.partitions import Partitions
from korvet.store.log.state.partition import Ends, Meta, Partition

_UNKNOWN_ENDS = Ends(-1, -1)


def stands_at_end(log: Partitions, want: Want) -> bool:
    """True if there is certainly nothing to read; no I/O."""
    end, stable = known_ends(log, want.partition)
    return (stable if want.is_committed else end) <= want.offset <= end


def known_ends(log: Partitions, partition: Partition) -> Ends:
    """The ends that the partition's channel last announced, if in the epoch known here."""
    message, since = log.wakeups.heard(partition.channel)
    if message is None or partition.epoch < 0 or partition.since != since:
        return _UNKNOWN_ENDS
    if message is not partition.message:
        partition.message = message
        try:
            epoch, end, *stable = map(int, message.split(b" "))
            partition.message_ends = epoch, Ends(end, stable[0] if stable else end)
        except ValueError:
            # Any client may publish there.
            partition.message_ends = -1, _UNKNOWN_ENDS
    epoch, ends = partition.message_ends
    return ends if epoch == partition.epoch else _UNKNOWN_ENDS


def announce_end(log: Partitions, partition: Partition, epoch: int, base: int, end: int) -> None:
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
