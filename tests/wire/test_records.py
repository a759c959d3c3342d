"""Records of a batch by their timestamps, in every codec."""

import gzip
import struct
from collections.abc import Callable

import cramjam
import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from korvet.wire import records
from korvet.wire.batch import CRC_FROM, GZIP, HEADER, HEADER_BYTES, LZ4, SNAPPY, ZSTD, Batch
from korvet.wire.compacted import opened, rebuilt
from korvet.wire.compress import compressed
from korvet.wire.records import DamagedStream, UndecodableRecords, dated, decompressed, first_at_or_after, read_varint
from tests.oracle.batches import Batch as Script
from tests.oracle.batches import encode
from tests.wire.whole import Whole
from tests.wire.whole import built as built_of

TIME = 1_700_000_000_000
HALF, OTHER = b"a" * 3000, b"b" * 3000


def _xerial(data: bytes) -> bytes:
    half = len(data) // 2
    chunks = [bytes(cramjam.snappy.compress_raw(part)) for part in (data[:half], data[half:])]
    return b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1) + b"".join(struct.pack(">i", len(c)) + c for c in chunks)


COMPRESS: dict[str, tuple[int, Callable[[bytes], bytes]]] = {
    "none": (0, bytes),
    "gzip": (1, gzip.compress),
    "snappy": (2, lambda data: bytes(cramjam.snappy.compress_raw(data))),
    "xerial snappy": (2, _xerial),
    "lz4": (3, lambda data: compressed(LZ4, data)),
    "zstd": (4, lambda data: bytes(cramjam.zstd.compress(data))),
}


def built(codec: str, count: int = 5, step_ms: int = 10, attributes: int = 0) -> tuple[Batch, bytes]:
    """A batch of records ``step_ms`` apart. Its checksum does not matter here."""
    plain = encode(Script(count=count, timestamp=TIME, step_ms=step_ms, value=b"v" * 50))
    number, compress = COMPRESS[codec]
    data = plain[:HEADER_BYTES] + compress(plain[HEADER_BYTES:])
    batch = Batch._make(HEADER.unpack_from(data))._replace(attributes=number | attributes)
    return batch, data


@pytest.mark.parametrize("codec", COMPRESS)
@pytest.mark.parametrize(
    ("ahead_ms", "found"),
    [(-5, (0, TIME)), (0, (0, TIME)), (1, (1, TIME + 10)), (10, (1, TIME + 10)), (40, (4, TIME + 40)), (41, None)],
)
def test_first_record_that_is_not_older_is_found(codec: str, ahead_ms: int, found: tuple[int, int] | None) -> None:
    assert first_at_or_after(*built(codec), TIME + ahead_ms) == found


@pytest.mark.parametrize("codec", COMPRESS)
def test_records_below_the_log_start_do_not_count(codec: str) -> None:
    assert first_at_or_after(*built(codec), TIME, 2) == (2, TIME + 20)
    assert first_at_or_after(*built(codec), TIME + 30, 2) == (3, TIME + 30)
    assert first_at_or_after(*built(codec, step_ms=-10), TIME - 5, 1) is None


def test_records_may_be_out_of_order() -> None:
    batch, data = built("none", step_ms=-10)
    assert first_at_or_after(batch, data, TIME) == (0, TIME)
    assert first_at_or_after(batch, data, TIME - 25, 3) is None


@pytest.mark.parametrize("horizon_ms", [None, TIME])
def test_times_wrap_as_in_java(horizon_ms: int | None) -> None:
    _, data = built("none")
    batch = Batch._make(HEADER.unpack_from(data))._replace(base_timestamp=(1 << 63) - 15)
    found = (2, 5 - (1 << 63))
    assert first_at_or_after(batch, data, -1 << 63, 2) == found
    plain, kept = opened(batch, data)
    rewritten, data = rebuilt(batch, plain, kept, horizon_ms)
    assert rewritten.max_timestamp == (1 << 63) - 5
    assert first_at_or_after(rewritten, data, -1 << 63, 2) == found


def test_log_append_time_is_the_time_of_every_record() -> None:
    batch, data = built("none", attributes=0x08)
    assert first_at_or_after(batch, data, TIME + 15) == (0, TIME + 40)
    assert first_at_or_after(batch, data, TIME + 41) is None


@pytest.mark.parametrize("codec", COMPRESS)
@settings(deadline=None)
@given(garbage=st.binary(max_size=80))
def test_garbage_is_undecodable(codec: str, garbage: bytes) -> None:
    batch, data = built(codec)
    try:
        found = first_at_or_after(batch, data[:HEADER_BYTES] + garbage, TIME + 1)
    except UndecodableRecords:
        return
    assert found is None or found[1] > TIME


@pytest.mark.parametrize("codec", [codec for codec in COMPRESS if codec != "none"])
def test_batch_that_decompresses_beyond_the_bound_is_refused(codec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    batch, data = built(codec, count=50)
    assert first_at_or_after(batch, data, TIME + 490) == (49, TIME + 490)
    monkeypatch.setattr(records, "MOST_BYTES", 1000)
    with pytest.raises(UndecodableRecords):
        first_at_or_after(batch, data, TIME + 490)


@pytest.mark.parametrize("codec", [codec for codec in COMPRESS if codec != "none"])
def test_few_bytes_may_hold_many_records(codec: str) -> None:
    number, compress = COMPRESS[codec]
    plain = bytes(3_000_000)
    assert records.decompressed(number, compress(plain)) == plain


@pytest.mark.parametrize("hostile", [b"\xff" * 1_000_000, b"\x01" + bytes(1_000_000)])
def test_hostile_records_take_no_time(hostile: bytes) -> None:
    """A number without an end, and a record of negative length, which a naive reader would read for ever."""
    batch, data = built("none")
    batch = batch._replace(records=2**31 - 1)
    with pytest.raises(UndecodableRecords):
        first_at_or_after(batch, data[:HEADER_BYTES] + hostile, TIME + 1)


def _lz4(data: bytes, *, content_checksum: bool = False) -> bytes:
    packer = cramjam.lz4.Compressor(level=3, content_checksum=content_checksum, block_linked=False)
    packer.compress(data)
    return bytes(packer.finish())


def _zstd(data: bytes) -> bytes:
    return bytes(cramjam.zstd.compress(data))


STREAMS: dict[str, tuple[int, bytes, bytes]] = {
    "gzip of two members": (GZIP, gzip.compress(HALF) + gzip.compress(OTHER), HALF + OTHER),
    "gzip with an empty member": (GZIP, gzip.compress(HALF) + gzip.compress(b"") + gzip.compress(OTHER), HALF + OTHER),
    "gzip with something else behind": (GZIP, gzip.compress(HALF) + bytes(40), HALF),
    "gzip with a cut head behind": (GZIP, gzip.compress(HALF) + gzip.compress(OTHER)[:9], HALF),
    "lz4 with a frame behind, which Kafka ignores": (LZ4, _lz4(HALF) + _lz4(OTHER), HALF),
    "lz4 with something else behind": (LZ4, compressed(LZ4, HALF) + b"else", HALF),
    "lz4 with its content's checksum": (LZ4, _lz4(HALF, content_checksum=True) + b"else", HALF),
    "zstd of two frames": (ZSTD, _zstd(HALF) + _zstd(OTHER), HALF + OTHER),
    "snappy of two chunks": (SNAPPY, _xerial(HALF + OTHER), HALF + OTHER),
    "snappy of two streams": (SNAPPY, _xerial(HALF) + _xerial(OTHER), HALF + OTHER),
    "snappy with a cut size": (SNAPPY, _xerial(HALF) + bytes(3), HALF),
}


@pytest.mark.parametrize("stream", STREAMS)
def test_joined_streams_are_read_as_kafka_reads_them(stream: str) -> None:
    codec, data, plain = STREAMS[stream]
    assert decompressed(codec, data) == plain


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_cut_stream_is_damaged(codec: str) -> None:
    number, compress = COMPRESS[codec]
    whole = compress(HALF + OTHER)
    for size in range(1, len(whole)):
        with pytest.raises(DamagedStream):
            decompressed(number, whole[:size])


def test_thousands_of_gzip_members_are_read() -> None:
    assert decompressed(GZIP, gzip.compress(b"x") * 20_000) == b"x" * 20_000


_TIMES = st.integers(-(1 << 40), 1 << 40)
_VALUES = st.sampled_from((b"", b"v" * 40, b"v" * 100, b"v" * 9000))


@settings(deadline=None)
@given(sent=st.lists(st.tuples(_TIMES, _VALUES), min_size=1, max_size=8), codec=st.integers(0, 4), claimed=_TIMES)
def test_dated_batch_has_the_greatest_time_of_its_records(
    sent: list[tuple[int, bytes]], codec: int, claimed: int
) -> None:
    times = [TIME + time for time, _ in sent]
    whole = [Whole(None, value, (), TIME + time) for time, value in sent]
    batch, data = built_of(*whole, codec=codec)
    right = batch._replace(max_timestamp=max(times))
    batch = batch._replace(max_timestamp=claimed)
    changed, whole_data, oldest = dated(batch, HEADER.pack(*batch) + data[HEADER_BYTES:])
    assert (changed._replace(crc=0), oldest) == (right._replace(crc=0), min(times))
    assert Batch._make(HEADER.unpack_from(whole_data)) == changed
    assert claimed == max(times) or crc32c(bytes(whole_data[CRC_FROM:])) == changed.crc
    for count in (batch.records - 1, batch.records + 1):
        with pytest.raises(UndecodableRecords):
            dated(batch._replace(records=count), data)


def test_records_without_a_time_do_not_count() -> None:
    assert dated(*built_of(Whole(timestamp=-1), Whole(timestamp=-1)))[0].max_timestamp == -1
    changed, _, oldest = dated(*built_of(Whole(timestamp=-1), Whole(timestamp=TIME)))
    assert (changed.max_timestamp, oldest) == (TIME, TIME)


def test_batch_that_is_too_long_to_be_opened_is_not_older_than_its_base_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "MOST_BYTES", 100)
    batch, data = built("gzip", count=50)
    assert dated(batch._replace(max_timestamp=0), data)[0].max_timestamp == TIME
    assert dated(batch._replace(max_timestamp=TIME + 1), data)[0].max_timestamp == TIME + 1


@pytest.mark.parametrize(
    ("data", "value"), [(b"\xff" * 9 + b"\x01", -(2**63)), (b"\xfe" + b"\xff" * 8 + b"\x7f", 2**63 - 1)]
)
def test_number_of_ten_bytes_has_64_bits_as_in_java(data: bytes, value: int) -> None:
    assert read_varint(data, 0) == (value, 10)
