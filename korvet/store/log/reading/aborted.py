"""The aborted transactions among the records for a read_committed reader.

Redis lists them by their last offsets, and a read gets the list from its offset on, page by page. Kafka stops at a
transaction after which nothing older was open; during one long transaction there is none. So the front-end remembers
the lowest first offset of each page, and skips a page whose transactions all begin above the batches read. The memory
is valid for one leader epoch, in which a page only loses members, by trims and compaction.

Source: TransactionIndex.collectAbortedTxns
"""

from __future__ import annotations

from korvet.redis.client import Purpose
from korvet.store.log.partitions.meta import meta_in_reply, request_meta
from korvet.store.log.partitions.partitions import Partitions
from korvet.store.log.state.partition import Meta, Page, Partition

AT_ONCE = 1000


async def aborted_within(
    log: Partitions, partition: Partition, meta: Meta, offset: int, next_offset: int
) -> list[tuple[int, int]] | None:
    """The aborted transactions with records in a range of offsets, as (producer id, first offset).

    None if some may be missing: after the read of the records, a trim or compaction may have removed transactions, or
    another history may have begun.

    :raises StoreUnavailable, StoreError:
    """
    name, pages = partition.transaction_keys.aborted, partition.aborted_pages
    pages.begin(meta.epoch)
    found: list[tuple[int, int]] = []
    at = offset
    while True:
        page = pages.at(at)
        if page is not None and page.first >= next_offset:
            at = page.until + 1
            continue
        until = "+inf" if page is None else page.until
        reply = log.store.call(Purpose.READ, name, "ZRANGE", name, at, until, "BYSCORE", "LIMIT", 0, AT_ONCE)
        meta_reply = request_meta(log, partition)
        members = [tuple(map(int, member.split())) for member in await reply]
        now = await meta_in_reply(log, partition, meta_reply)
        if now is None or now.local_start > offset or (now.epoch, now.cleaned) != (meta.epoch, meta.cleaned):
            return None
        found += [(producer_id, first) for first, _, producer_id, _ in members if first < next_offset]
        if page is None and len(members) == AT_ONCE:
            page = Page(members[-1][1], min(first for first, *_ in members))
            pages.add(at, page)
        if page is None or any(stable >= next_offset for *_, stable in members):
            return found
        at = page.until + 1
