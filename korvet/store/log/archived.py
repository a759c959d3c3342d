"""How far a topic is archived: what the group `ARCHIVE_GROUP` committed, and what that is worth in a log's history.

With ``korvet.retention=archived`` nothing at or above that offset is removed. A committed offset speaks of the history
in which its leader epoch was known. Where Redis lost acknowledged records, others have their offsets by now, and those
are not archived: so it counts up to the end of its epoch. An epoch that the log does not know, and none at all, count
for nothing: the histories may have parted anywhere, since a Redis may also come back with records that another one
had lost before. A commit that expired or was deleted leaves nothing archived.

Source: LeaderEpochFileCache.endOffsetFor, RemoteLogManager (what is below highestOffsetInRemoteStorage may go)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from korvet.store import group_replies as replies
from korvet.store.catalog import Catalog, Topic
from korvet.store.client import Purpose, Store
from korvet.store.group_types import Offset
from korvet.store.keys import Namespace
from korvet.store.log.epochs import end_of_epoch, parse_epochs
from korvet.store.log.read import Meta

ARCHIVE_GROUP: Final = "korvet.archive"
"""Its committed offsets say what is archived: everything below them."""


def keeps_unarchived(catalog: Catalog, topic: Topic) -> bool:
    """Whether a topic may lose only what is archived."""
    return catalog.setting(topic, "korvet.retention") == "archived"


async def archived_offsets(
    namespace: Namespace, store: Store, topic: Topic, indexes: Iterable[int]
) -> Mapping[int, Offset]:
    """What was committed for the archive of some partitions; none for a former topic of the same name.

    :raises StoreUnavailable, StoreError:
    """
    flat = await store.fcall(
        Purpose.COORDINATE,
        "korvet_group_fetch",
        namespace.group(ARCHIVE_GROUP),
        *(f"{topic.name}:{index}" for index in indexes),
    )
    places = zip(flat[::2], flat[1::2], strict=True)
    found = {replies.place(name)[1]: replies.offset(text) for name, text in places if text}
    return {index: offset for index, offset in found.items() if offset.topic_id == topic.id}


def archived_end(meta: Meta, committed: Offset | None) -> int:
    """The offset below which all of a log is archived as it is now; its start where that is not known."""
    if committed is None:
        return meta.start
    epoch_end = end_of_epoch(parse_epochs(meta.epochs), committed.leader_epoch, meta.end)
    if epoch_end.epoch != committed.leader_epoch:
        return meta.start
    return max(meta.start, min(committed.offset, epoch_end.end_offset))
