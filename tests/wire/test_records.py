"""Records of a batch by their timestamps, in every codec."""

import gzip
import struct
from collections.abc import Callable

import cramjam
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from korvet.wire import records
from korvet.wire.batch import HEADER, HEADER_BYTES, Batch
from korvet.wire.records import UndecodableRecords, first_at_or_after
from tests.oracle.batches import Batch as Script
from tests.oracle.batches import encode

TIME = 1_700_000_000_000


def _xerial(data: bytes) -> bytes:
    half = len(data) // 2
    chunks = [bytes(cramjam.snappy.compress_raw(part)) for part in (data[:half], data[half:])]
    return b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1) + b"".join(struct.pack(">i", len(c)) + c for c in chunks)


COMPRESS: dict[str, tuple[int, Callable[[bytes], bytes]]] = {
    "none": (0, bytes),
    "gzip": (1, gzip.compress),
    "snappy": (2, lambda data: bytes(cramjam.snappy.compress_raw(data))),
    "xerial snappy": (2, _xerial),
    "lz4": (3, lambda data: bytes(cramjam.lz4.compress(data))),
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
