"""Batches, accepted and refused as Apache Kafka 4.1.2 does it: each expected answer was seen there."""

import struct

import pytest
from crc32c import crc32c

from korvet.wire.batch import HEADER, Batch, Refusal, placed_in_log, read_batch, refusal

CORRUPT, TOO_LARGE, INVALID, UNSUPPORTED_CODEC, UNKNOWN = 2, 10, 87, 76, -1
FIELDS = Batch._fields


def batch(records: bytes = b"r" * 30, **changes: int) -> bytes:
    """A batch of three records. Its checksum is right, unless the changes name another."""
    values = {
        "base_offset": 0, "length": HEADER.size - 12 + len(records), "leader_epoch": -1, "magic": 2, "crc": 0,
        "attributes": 0, "last_offset_delta": 2, "base_timestamp": 1000, "max_timestamp": 1020, "producer_id": -1,
        "producer_epoch": -1, "base_sequence": -1, "records": 3,
    }  # fmt: skip
    packed = bytearray(HEADER.pack(*(values | changes).values()) + records)
    if "crc" not in changes:
        packed[17:21] = struct.pack(">I", crc32c(packed[21:]))
    return bytes(packed)


def outcome(data: bytes | None, *, version: int = 12, max_message_bytes: int = 1 << 20) -> Batch | Refusal:
    header = read_batch(data, version)
    if isinstance(header, Refusal):
        return header
    assert data is not None
    return refusal(header, data[: header.size_bytes], max_message_bytes) or header


def test_good_batch_is_read_whole() -> None:
    data = batch(producer_id=7, producer_epoch=3, base_sequence=5)
    header = outcome(data)
    assert isinstance(header, Batch)
    assert header.size_bytes == len(data)
    assert (header.records, header.max_timestamp) == (3, 1020)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 3, 5)


@pytest.mark.parametrize(
    ("data", "code"),
    [
        pytest.param(None, INVALID, id="null"),
        pytest.param(b"", INVALID, id="empty"),
        pytest.param(b"12345", INVALID, id="five bytes"),
        pytest.param(bytes(100), CORRUPT, id="zeroes"),
        pytest.param(batch()[:-5], INVALID, id="cut off"),
        pytest.param(batch(length=13), CORRUPT, id="length below any batch"),
        pytest.param(batch(length=14), CORRUPT, id="length below a header"),
        pytest.param(batch(length=48), CORRUPT, id="length one below a header"),
        pytest.param(batch(length=49), CORRUPT, id="length of a header alone"),
        pytest.param(batch(length=-1), CORRUPT, id="negative length"),
        pytest.param(batch(magic=0), INVALID, id="magic 0"),
        pytest.param(batch(magic=1), INVALID, id="magic 1"),
        pytest.param(batch(magic=3), CORRUPT, id="magic 3"),
        pytest.param(batch(magic=-1), CORRUPT, id="magic -1"),
        pytest.param(batch(crc=1), CORRUPT, id="checksum"),
        pytest.param(batch(base_offset=7), INVALID, id="base offset"),
        pytest.param(batch() + batch(), INVALID, id="two batches"),
        pytest.param(batch() + bytes(17), CORRUPT, id="zeroes behind it"),
        pytest.param(batch(records=b"", last_offset_delta=0) , INVALID, id="no records at all"),
        pytest.param(batch(last_offset_delta=5), INVALID, id="offsets beyond the count"),
        pytest.param(batch(attributes=0x20), INVALID, id="control batch"),
        pytest.param(batch(attributes=5), UNKNOWN, id="codec that is none"),
        pytest.param(batch(producer_id=7, producer_epoch=0), INVALID, id="producer without a sequence"),
    ],
)  # fmt: skip
def test_bad_batch_is_refused(data: bytes | None, code: int) -> None:
    answer = outcome(data)
    assert isinstance(answer, Refusal)
    assert answer.code == code


@pytest.mark.parametrize(("count", "last_delta"), [(0, -1), (0, 2), (-1, 2)])
def test_count_below_one_is_invalid(count: int, last_delta: int) -> None:
    data = bytearray(batch(last_offset_delta=last_delta))
    data[57:61] = struct.pack(">i", count)
    data[17:21] = struct.pack(">I", crc32c(data[21:]))
    answer = outcome(bytes(data))
    assert isinstance(answer, Refusal)
    assert answer.code == INVALID


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(batch() + b"12345", id="a few bytes behind it"),
        pytest.param(batch() + batch()[:-3], id="half a batch behind it"),
        pytest.param(batch(attributes=0x08), id="log append time bit"),
        pytest.param(batch(attributes=0x80), id="unused bit"),
        pytest.param(batch(leader_epoch=7), id="leader epoch"),
        pytest.param(batch(producer_id=-2, base_sequence=0), id="producer id -2"),
        pytest.param(batch(base_sequence=5), id="sequence without a producer"),
    ],
)
def test_batches_that_kafka_accepts_are_accepted(data: bytes) -> None:
    assert isinstance(outcome(data), Batch)


def test_size_is_judged_before_checksum_and_after_base_offset() -> None:
    assert outcome(batch(crc=1), max_message_bytes=50) == Refusal(TOO_LARGE)
    answer = outcome(batch(base_offset=7), max_message_bytes=50)
    assert isinstance(answer, Refusal)
    assert (answer.code, answer.tells_log_start) == (INVALID, True)
    assert isinstance(outcome(batch(), max_message_bytes=len(batch())), Batch)


@pytest.mark.parametrize("version", range(3, 14))
def test_zstd_needs_produce_7(version: int) -> None:
    answer = outcome(batch(attributes=4), version=version)
    if version < 7:
        assert answer == Refusal(UNSUPPORTED_CODEC)
    else:
        assert isinstance(answer, Batch)


def test_broken_framing_fails_the_request_as_a_whole() -> None:
    answer = outcome(bytes(100))
    assert isinstance(answer, Refusal)
    assert answer.fails_request
    assert answer.message == "Record size 0 is less than the minimum record overhead (14)"
    answer = outcome(batch(magic=-1))
    assert isinstance(answer, Refusal)
    assert (answer.fails_request, answer.message) == (True, "Invalid magic found in record: -1")
    answer = outcome(batch() + bytes(17))
    assert isinstance(answer, Refusal)
    assert not answer.fails_request


def test_transactional_batches_are_recognised() -> None:
    plain, transactional = outcome(batch()), outcome(batch(attributes=0x10))
    assert isinstance(plain, Batch)
    assert isinstance(transactional, Batch)
    assert (plain.is_transactional, transactional.is_transactional) == (False, True)


def test_batch_for_consumers_has_offset_and_epoch_and_a_true_checksum() -> None:
    head, rest = placed_in_log(batch(), 1234567890123, 9)
    header = Batch._make(HEADER.unpack_from(head + bytes(rest)))
    assert (header.base_offset, header.leader_epoch, header.size_bytes) == (1234567890123, 9, len(batch()))
    assert header.crc == crc32c(bytes(rest)[5:])
