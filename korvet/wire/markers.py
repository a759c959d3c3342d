"""Markers: control batches that record the commit or abort of a producer's transaction in a log.

A control batch is a batch of magic 2 with the attributes control and transactional, a base sequence of -1, and one
record. The record's key is version int16 and type int16 (0 abort, 1 commit), its value version int16 and the epoch of
the coordinator int32.

Source: ControlRecordType, EndTransactionMarker, MemoryRecords.writeEndTransactionalMarker
"""

from __future__ import annotations

import struct
from typing import Final

from korvet.wire.batch import CONTROL, TRANSACTIONAL, Batch, new_batch

COORDINATOR_EPOCH: Final = 0
"""A constant, because korvet's coordinators have no epoch: a transaction's ordinal keeps late markers out."""
_KEY = struct.Struct(">hh")
_VALUE = struct.Struct(">hi")
_VERSION = 0
_ABORT, _COMMIT = 0, 1
_NO_SEQUENCE = -1


def marker(producer_id: int, producer_epoch: int, *, is_commit: bool, timestamp_ms: int) -> tuple[Batch, bytes]:
    """The control batch that ends a producer's transaction, as header and bytes; its base offset is 0."""
    record, producer = _record(_COMMIT if is_commit else _ABORT), (producer_id, producer_epoch, _NO_SEQUENCE)
    return new_batch(record, timestamp_ms, timestamp_ms, attributes=CONTROL | TRANSACTIONAL, producer=producer)


def _record(kind: int) -> bytes:
    """A marker's record: length, attributes, deltas of 0, key, value, no headers. Each length is a one-byte varint."""
    key, value = _KEY.pack(_VERSION, kind), _VALUE.pack(_VERSION, COORDINATOR_EPOCH)
    body = bytes((0, 0, 0, 2 * len(key))) + key + bytes((2 * len(value),)) + value + b"\x00"
    return bytes((2 * len(body),)) + body


def is_commit(key: bytes | None) -> bool:
    """True if the key of a control record is a commit's."""
    return key is not None and len(key) >= _KEY.size and _KEY.unpack_from(key)[1] == _COMMIT
