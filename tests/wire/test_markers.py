"""Control batches, as Apache Kafka writes them and as its clients read them."""

from __future__ import annotations

import pytest
from aiokafka.record.default_records import DefaultRecordBatch

from korvet.wire.batch import HEADER, Batch
from korvet.wire.markers import marker

# MemoryRecords.withEndTransactionMarker(1700000000123, 4711, (short) 3, new EndTransactionMarker(COMMIT, 0)) of 4.1.2.
FROM_KAFKA = {
    True: "000000000000000000000042ffffffff029763c69a0030000000000000018bcfe5687b0000018bcfe5687b0000000000001267"
    "0003ffffffff000000012000000008000000010c00000000000000",
    False: "000000000000000000000042ffffffff02635d10d20030000000000000018bcfe5687b0000018bcfe5687b0000000000001267"
    "0003ffffffff000000012000000008000000000c00000000000000",
}
NOW_MS = 1_700_000_000_123


def made(is_commit: bool) -> tuple[Batch, bytes]:
    return marker(4711, 3, is_commit=is_commit, timestamp_ms=NOW_MS)


@pytest.mark.parametrize("is_commit", [True, False])
def test_marker_equals_kafkas(is_commit: bool) -> None:
    assert made(is_commit)[1].hex() == FROM_KAFKA[is_commit]


@pytest.mark.parametrize("is_commit", [True, False])
def test_marker_header_agrees_with_its_bytes(is_commit: bool) -> None:
    batch, data = made(is_commit)
    assert Batch._make(HEADER.unpack_from(data)) == batch
    assert batch.size_bytes == len(data)


@pytest.mark.parametrize("is_commit", [True, False])
def test_clients_read_a_marker(is_commit: bool) -> None:
    _, data = made(is_commit)
    batch = DefaultRecordBatch(data)
    assert batch.validate_crc()
    assert batch.is_control_batch and batch.is_transactional
    (record,) = batch
    assert record.key == (b"\x00\x00\x00\x01" if is_commit else b"\x00\x00\x00\x00")
    assert record.value == bytes(6)
    assert (record.timestamp, batch.producer_id, batch.producer_epoch, batch.base_sequence) == (NOW_MS, 4711, 3, -1)
