"""Entries of one record each, joined into batches for readers.

Consecutive entries become one batch if they share epoch, producer and kind, and their sequences grow like their
offsets.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from korvet.store.log.entries import Entry
from korvet.wire.record_entries import StoredRecord, batches, stored_record


def in_batches(entries: Sequence[Entry], *, may_join: bool = True) -> Sequence[Entry]:
    """The entries, with single records as batches: of as many records as possible, or of one each.

    :raises ValueError: korvet did not write an entry.
    """
    if all(entry.record is None for entry in entries):
        return entries
    batched: list[Entry] = []
    for is_batch, group in groupby(entries, lambda entry: entry.record is None):
        some = list(group)
        if is_batch:
            batched += some
        elif may_join:
            batched += _joined(some)
        else:
            batched += [batch for entry in some for batch in _joined([entry])]
    return batched


def _joined(entries: Sequence[Entry]) -> Iterator[Entry]:
    at = 0
    for count, data in batches([_stored(entry) for entry in entries]):
        first, last = entries[at], entries[at + count - 1]
        # The index has the size of a single record; a caller checks the bytes against it.
        size_bytes = len(data) if count > 1 else first.size_bytes
        records = last.next_offset - (first.next_offset - first.records)
        yield last._replace(records=records, size_bytes=size_bytes, data=data, record=None)
        at += count


def _stored(entry: Entry) -> StoredRecord:
    assert entry.record is not None
    timestamp, fields = entry.record
    return stored_record(entry.next_offset - 1, timestamp, entry.leader_epoch, fields)
