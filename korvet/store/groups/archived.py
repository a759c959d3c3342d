"""The archived offset of a partition: the group `ARCHIVE_GROUP` commits it, and the log's history bounds it.

With ``korvet.retention=archived`` retention removes nothing at or above that offset. A committed offset belongs to the
history of its leader epoch. If Redis lost acknowledged records, other, unarchived records may have their offsets. So a
commit counts up to the end of its epoch. A commit without an epoch, or with one unknown to the log, counts for nothing:
the histories may have diverged anywhere. After a commit expired or was deleted, nothing counts as archived.

Source: LeaderEpochFileCache.endOffsetFor, RemoteLogManager (records below highestOffsetInRemoteStorage may go)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from korvet.redis.client import Purpose, Store
from korvet.store.catalog.topic import Topic
from korvet.store.groups import replies
from korvet.store.groups.call import keys_of
from korvet.store.groups.types import Offset
from korvet.store.keys import Namespace
from korvet.store.log.state.epochs import end_of_epoch, parse_epochs
from korvet.store.log.state.partition import Meta

ARCHIVE_GROUP: Final = "korvet.archive"
"""The group of the archive: everything below its committed offsets is archived."""


async def archived_offsets(
    namespace: Namespace, store: Store, topic: Topic, indexes: Iterable[int]
) -> Mapping[int, Offset]:
    """The archive's committed offsets of some partitions, without those of a former topic of the same name.

    :raises StoreUnavailable, StoreError:
    """
    flat = await store.call_function(
        Purpose.COORDINATE,
        "korvet_group_fetch",
        keys_of("korvet_group_fetch", namespace.group(ARCHIVE_GROUP), has_optional_keys=False),
        partitions=[f"{topic.name}:{index}" for index in indexes],
    )
    partitions = zip(flat[::2], flat[1::2], strict=True)
    found = {replies.topic_partition(name)[1]: replies.offset(text) for name, text in partitions if text}
    return {index: offset for index, offset in found.items() if offset.topic_id == topic.id}


def archived_end(meta: Meta, committed: Offset | None) -> int:
    """The offset below which all of a log is archived; the log's start if unknown."""
    if committed is None:
        return meta.start
    epochs = parse_epochs(meta.epochs)
    epoch_end = end_of_epoch(epochs, committed.leader_epoch, meta.end)
    # The log of a partition with segments does not remember the first of many epochs.
    if epoch_end.epoch != committed.leader_epoch or committed.leader_epoch < epochs[0][0]:
        return meta.start
    return max(meta.start, min(committed.offset, epoch_end.end_offset))
