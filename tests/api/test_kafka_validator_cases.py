"""Cases of Kafka's LogValidatorTest, by raw requests of magic 2: the batches that Produce takes, and their storage."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

import crc32c
import pytest

from tests.api.data import batches_of, fetch, now_ms, offsets, produce, records, wanted
from tests.api.raw import created
from tests.oracle.batches import describe
from tests.store.keyed import Pair, keyed
from tests.support.broker import KorvetServer
from tests.support.ported import kafka

HOUR_MS = 3_600_000
GZIP, LZ4 = 1, 3
LOG_APPEND_TIME = 0x08
THREE: tuple[Pair, ...] = ((None, b"hello"), (None, b"there"), (None, b"beautiful"))


def stored(broker: KorvetServer, topic: str) -> Mapping[str, Any]:
    """The one batch of a topic."""
    (read,) = fetch(broker.port, topic, wanted(0))
    batch: Mapping[str, Any]
    (batch,) = batches_of(read)
    return batch


def sent(data: bytes) -> Mapping[str, Any]:
    described = describe(data)
    assert described is not None
    return described[0]


def with_header(data: bytes, at: int, kind: str, value: int) -> bytes:
    """A batch with another value in its header, and a right checksum."""
    changed = bytearray(data)
    struct.pack_into(kind, changed, at, value)
    struct.pack_into(">I", changed, 17, crc32c.crc32c(bytes(changed[21:])))
    return bytes(changed)


def refused(broker: KorvetServer, data: bytes, **configs: Any) -> str:
    """The code for a batch, with a check that no record is stored."""
    topic = created(broker.port, **configs)
    answer = produce(broker.port, topic, data)
    (read,) = fetch(broker.port, topic, wanted(0))
    assert (answer["base_offset"], read["high_watermark"]) == (-1, 0)
    code: str = answer["error_code"]
    return code


# ---------------------------------------------------------------------- stored as it came


@kafka("LogValidatorTest.checkNonCompressed", "LogValidatorTest.checkCompressed")
@pytest.mark.parametrize("codec", range(5))
def test_batch_is_stored_as_it_came(broker: KorvetServer, codec: int) -> None:
    data = keyed(*THREE, timestamp=now_ms(), codec=codec, producer=(1324, 10, 984))
    topic = created(broker.port)
    assert produce(broker.port, topic, data)["base_offset"] == 0
    own = {name: value for name, value in sent(data).items() if name != "leader_epoch"}
    assert {name: stored(broker, topic)[name] for name in own} == own


@kafka("LogValidatorTest.testRelativeOffsetAssignmentNonCompressedV2")
@kafka("LogValidatorTest.testRelativeOffsetAssignmentCompressedV2")
@pytest.mark.parametrize("codec", [0, GZIP])
def test_offsets_follow_the_log_end(broker: KorvetServer, codec: int) -> None:
    topic = created(broker.port)
    for _ in range(3):
        produce(broker.port, topic, keyed(*THREE, timestamp=now_ms(), codec=codec))
    (read,) = fetch(broker.port, topic, wanted(0))
    assert offsets(read) == [0, 3, 6]
    assert [batch["last_offset_delta"] for batch in batches_of(read)] == [2, 2, 2]


@kafka("LogValidatorTest.testRecordBatchWithCountOverrides")
def test_count_that_fits_the_last_offset_is_taken(broker: KorvetServer) -> None:
    topic = created(broker.port)
    data = with_header(with_header(keyed(*THREE, timestamp=now_ms()), 57, ">i", 3), 23, ">i", 2)
    assert produce(broker.port, topic, data)["error_code"] == "NONE"


# ---------------------------------------------------------------------- compressed anew


@kafka("LogValidatorTest.checkRecompression", "LogValidatorTest.testDifferentCodecCausesRecompression")
@pytest.mark.parametrize(("codec", "kept"), [(0, "gzip"), (GZIP, "lz4"), (LZ4, "uncompressed")])
def test_batch_in_another_codec_is_compressed_anew(broker: KorvetServer, codec: int, kept: str) -> None:
    data = keyed(*THREE, timestamp=now_ms(), codec=codec, producer=(1324, 10, 984))
    topic = created(broker.port, compression_type=kept)
    assert produce(broker.port, topic, data)["error_code"] == "NONE"
    batch = stored(broker, topic)
    same = ("first_time", "max_time", "producer_id", "producer_epoch", "base_sequence", "last_offset_delta", "count")
    assert {name: batch[name] for name in same} == {name: sent(data)[name] for name in same}
    assert (batch["crc"], batch["attributes"]) == ("right", {"gzip": GZIP, "lz4": LZ4, "uncompressed": 0}[kept])


@kafka("LogValidatorTest.testDifferentLevelDoesNotCauseRecompression")
@pytest.mark.parametrize("level", ["1", "9"])
def test_batch_in_another_level_stays_as_it_came(broker: KorvetServer, level: str) -> None:
    data = keyed((None, b"some" * 256), (None, b"data" * 256), timestamp=now_ms(), codec=GZIP)
    topic = created(broker.port, compression_type="gzip", compression_gzip_level=level)
    assert produce(broker.port, topic, data)["error_code"] == "NONE"
    assert stored(broker, topic)["body"] == sent(data)["body"]


# ---------------------------------------------------------------------- times


@kafka("LogValidatorTest.checkLogAppendTimeNonCompressed")
@kafka("LogValidatorTest.checkLogAppendTimeWithoutRecompression")
@kafka("LogValidatorTest.checkLogAppendTimeWithRecompression")
@pytest.mark.parametrize(("codec", "kept"), [(0, "producer"), (GZIP, "producer"), (GZIP, "lz4")])
def test_append_time_replaces_the_records_times(broker: KorvetServer, codec: int, kept: str) -> None:
    topic = created(broker.port, message_timestamp_type="LogAppendTime", compression_type=kept)
    before = now_ms()
    data = keyed(*THREE, timestamp=1234, codec=codec)
    answer = produce(broker.port, topic, data)
    batch = stored(broker, topic)
    assert before <= batch["max_time"] == answer["log_append_time"] <= now_ms()
    assert (batch["crc"], batch["first_time"], batch["attributes"] & LOG_APPEND_TIME) == ("right", 1234, 8)
    assert (batch["body"] == sent(data)["body"]) == (kept == "producer")


@kafka("LogValidatorTest.testInvalidCreateTimeNonCompressedV2", "LogValidatorTest.testInvalidCreateTimeCompressedV2")
@kafka("LogValidatorTest.testRecordWithPastTimestampIsRejected")
@kafka("LogValidatorTest.testRecordWithFutureTimestampIsRejected")
@pytest.mark.parametrize("codec", [0, GZIP])
@pytest.mark.parametrize(
    ("hours", "code"), [(-25, "INVALID_TIMESTAMP"), (-23, "NONE"), (0.9, "NONE"), (2, "INVALID_TIMESTAMP")]
)
def test_times_out_of_bounds_are_refused(broker: KorvetServer, codec: int, hours: float, code: str) -> None:
    configs: dict[str, Any] = {
        "message_timestamp_before_max_ms": str(24 * HOUR_MS), "message_timestamp_after_max_ms": str(HOUR_MS),
    }  # fmt: skip
    data = keyed(*THREE, timestamp=now_ms() + round(hours * HOUR_MS), codec=codec)
    if code == "NONE":
        assert produce(broker.port, created(broker.port, **configs), data)["error_code"] == code
    else:
        assert refused(broker, data, **configs) == code


# ---------------------------------------------------------------------- refused


@kafka("LogValidatorTest.checkOnlyOneBatch")
@pytest.mark.parametrize("codec", range(5))
@pytest.mark.parametrize("kept", ["producer", "gzip"])
def test_two_batches_at_once_are_refused(broker: KorvetServer, codec: int, kept: str) -> None:
    data = keyed(*THREE, timestamp=now_ms(), codec=codec)
    assert refused(broker, data + data, compression_type=kept) == "INVALID_RECORD"


@kafka("LogValidatorTest.testBatchWithoutRecordsNotAllowed")
@pytest.mark.parametrize("codec", range(5))
@pytest.mark.parametrize("kept", ["producer", "gzip"])
def test_batch_without_records_is_refused(broker: KorvetServer, codec: int, kept: str) -> None:
    data = records(0, attributes=codec, producer_id=1324, producer_epoch=10, sequence=984)
    assert refused(broker, with_header(data, 23, ">i", 5), compression_type=kept) == "INVALID_RECORD"
    assert refused(broker, with_header(data, 23, ">i", -1), compression_type=kept) == "INVALID_RECORD"


@kafka("LogValidatorTest.testInconsistentCountAndOffset")
@pytest.mark.parametrize("last_offset_delta", [0, 15, -3])
def test_count_that_does_not_fit_the_last_offset_is_refused(broker: KorvetServer, last_offset_delta: int) -> None:
    data = with_header(keyed(*THREE, timestamp=now_ms()), 23, ">i", last_offset_delta)
    assert refused(broker, data) == "INVALID_RECORD"


@kafka("LogValidatorTest.checkInvalidSequence")
@pytest.mark.parametrize("codec", range(5))
def test_producer_without_a_sequence_is_refused(broker: KorvetServer, codec: int) -> None:
    data = keyed((None, b"hello"), timestamp=now_ms(), codec=codec, producer=(1234, 0, 0))
    assert refused(broker, with_header(data, 53, ">i", -2)) == "INVALID_RECORD"


@kafka("LogValidatorTest.checkInvalidChecksum")
@pytest.mark.parametrize("codec", range(5))
def test_wrong_checksum_is_refused(broker: KorvetServer, codec: int) -> None:
    data = bytearray(keyed(*THREE, timestamp=now_ms(), codec=codec))
    data[17] ^= 1
    assert refused(broker, bytes(data)) == "CORRUPT_MESSAGE"


@kafka("LogValidatorTest.testControlRecordsNotAllowedFromClients")
def test_control_records_are_not_for_clients(broker: KorvetServer) -> None:
    data = keyed((b"\0\0\0\1", b"\0\0\0\0\0\0"), timestamp=now_ms(), attributes=0x20, producer=(23423, 5, -1))
    assert refused(broker, data) == "INVALID_RECORD"


@kafka("LogValidatorTest.checkNoKeyCompactedTopic")
@pytest.mark.parametrize("codec", range(5))
def test_record_without_a_key_is_not_for_compacted_topics(broker: KorvetServer, codec: int) -> None:
    data = keyed(*THREE, timestamp=now_ms(), codec=codec)
    assert refused(broker, data, cleanup_policy="compact") == "INVALID_RECORD"
