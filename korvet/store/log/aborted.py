"""The aborted transactions with records in the answer to a reader of committed records.

Redis lists them by their last offsets, and a read asks for them from its offset on, page by page. Kafka stops at a
transaction behind which nothing older was open; under one long open transaction there is none before its end. So the
front-end remembers the first offset of any transaction in each page, and skips a page that begins above the batches
that are read. The memory is good for a leader epoch, in which a page only loses members, by trims and compaction.

Source: TransactionIndex.collectAbortedTxns
"""

from __future__ import annotations

from korvet.redis.client import Purpose
from korvet.store.log.aborted_pages import Page
from korvet.store.log.meta import ask_meta, told_meta
from korvet.store.log.partition import Meta, Partition
from korvet.store.log.partitions import Partitions

AT_ONCE = 1000


async def aborted_within(
    log: Partitions, partition: Partition, meta: Meta, offset: int, next_offset: int
) -> list[tuple[int, int]] | None:
    """The aborted transactions with records from an offset to another, as producer ids and first offsets.

    None if some may be missing. The records were read before, and meanwhile a trim or a compaction may have forgotten
    transactions, or another history may have begun.

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
        asked = log.store.call(Purpose.READ, name, "ZRANGE", name, at, until, "BYSCORE", "LIMIT", 0, AT_ONCE)
        asked_meta = ask_meta(log, partition)
        members = [tuple(map(int, member.split())) for member in await asked]
        now = await told_meta(log, partition, asked_meta)
        if now is None or now.start > offset or (now.epoch, now.cleaned) != (meta.epoch, meta.cleaned):
            return None
        found += [(producer_id, first) for first, _, producer_id, _ in members if first < next_offset]
        if page is None and len(members) == AT_ONCE:
            page = Page(members[-1][1], min(first for first, *_ in members))
            pages.add(at, page)
        if page is None or any(stable >= next_offset for *_, stable in members):
            return found
        at = page.until + 1
