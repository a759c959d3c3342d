"""Each client reads back its own records unchanged."""

import time

import pytest

from tests.kafka.client import At, Client
from tests.kafka.conftest import NewTopic
from tests.kafka.options import ProduceOptions, failures
from tests.kafka.records import Record, compressible, contents, incompressible, numbered
from tests.kafka.traits import CODECS, TRAITS, names_where

MESSAGE_TOO_LARGE = 10


@pytest.mark.parametrize("codec", CODECS)
def test_records_of_each_codec_are_read_back(client: Client, topic: str, codec: str) -> None:
    records = compressible(50, prefix=f"{client.name}-{codec}")
    outcomes = client.produce(topic, records, ProduceOptions(compression=codec))
    assert failures(outcomes) == []
    read = client.consume(topic, "earliest", len(records))
    assert contents(read) == contents(records)
    assert [record.offset for record in read] == list(range(len(records)))
    for outcome, record in zip(outcomes, read, strict=True):
        assert outcome.offset in (None, record.offset)


def test_keys_values_and_headers_are_kept_even_if_null_or_empty(client: Client, topic: str) -> None:
    records = [
        Record(key=b"key", value=b"value", partition=0),
        Record(key=None, value=b"no key", partition=0),
        Record(key=b"deleted", value=None, partition=0),
        Record(key=b"unicode", value="κορβέτα ⛵".encode(), partition=0),
        Record(key=b"one", value=b"header", headers=(("name", b"value"),), partition=0),
        Record(key=b"more", value=b"headers", headers=(("a", b"1"), ("b", b"2"), ("c", b"")), partition=0),
        *_records_for(client.name),
    ]
    assert failures(client.produce(topic, records)) == []
    assert contents(client.consume(topic, "earliest", len(records))) == contents(records)


def _records_for(name: str) -> list[Record]:
    """Sample records without the parts that some clients cannot write."""
    records = []
    if TRAITS[name].binary_headers:
        records.append(Record(value=bytes(range(256)), headers=(("bytes", bytes(range(256))),), partition=0))
    if TRAITS[name].writes_null_headers:
        records.append(Record(value=b"null header", headers=(("null", None),), partition=0))
    return records


@pytest.mark.parametrize("client", names_where(lambda traits: traits.writes_timestamps), indirect=True)
def test_records_of_now_are_found_by_time_beside_an_old_one(client: Client, topic: str) -> None:
    """kafkajs computes a batch's greatest time from the records that were given one."""
    now = int(time.time() * 1000)
    times = [None, None, now - 30 * 86_400_000]
    client.produce(topic, [Record(value=b"%d" % at, timestamp_ms=one, partition=0) for at, one in enumerate(times)])
    found = client.consume(topic, At(now - 60_000), 1)[0]
    assert (found.offset, found.value) == (0, b"0")


@pytest.mark.parametrize("client", names_where(lambda traits: traits.writes_timestamps), indirect=True)
def test_timestamps_given_by_the_producer_are_kept(client: Client, topic: str) -> None:
    hour_ago = int(time.time() * 1000) - 3_600_000
    stamps = [hour_ago, hour_ago + 1, hour_ago - 1000, hour_ago + 60_000]
    records = [Record(value=str(stamp).encode(), timestamp_ms=stamp, partition=0) for stamp in stamps]
    client.produce(topic, records)
    assert [record.timestamp_ms for record in client.consume(topic, "earliest", len(records))] == stamps


def test_record_without_timestamp_gets_the_time_of_its_creation(client: Client, topic: str) -> None:
    before = int(time.time() * 1000)
    client.produce(topic, numbered(1))
    after = int(time.time() * 1000)
    [record] = client.consume(topic, "earliest", 1)
    assert record.timestamp_ms is not None
    assert before <= record.timestamp_ms <= after


def test_record_without_partition_reaches_exactly_one(client: Client, new_topic: NewTopic) -> None:
    topic = new_topic(3)
    records = [Record(key=f"key-{n}".encode(), value=f"value-{n}".encode()) for n in range(60)]
    client.produce(topic, records)
    read = client.consume(topic, "earliest", len(records))
    assert sorted(contents(read), key=_by_value) == sorted(contents(records), key=_by_value)
    assert {record.partition for record in read} == {0, 1, 2}


def _by_value(record: Record) -> bytes:
    return record.value or b""


@pytest.mark.parametrize("acks", [0, 1, -1])
def test_records_arrive_in_order_with_each_acks(client: Client, topic: str, acks: int) -> None:
    records = numbered(20)
    assert failures(client.produce(topic, records, ProduceOptions(acks=acks))) == []
    assert contents(client.consume(topic, "earliest", len(records))) == contents(records)


def test_idempotent_producer_writes_each_record_once(client: Client, topic: str) -> None:
    # The batches have few records, so that several are in flight at once.
    records = compressible(300, prefix="once")
    options = ProduceOptions(idempotent=True, batch_bytes=4096)
    assert failures(client.produce(topic, records, options)) == []
    another = numbered(1, prefix="another producer")
    assert failures(client.produce(topic, another, ProduceOptions(idempotent=True))) == []
    read = client.consume(topic, "earliest", len(records) + 1)
    assert contents(read[:-1]) == contents(records)
    assert read[-1].offset == len(records)


def test_too_large_record_is_refused_and_the_producer_goes_on(client: Client, topic: str) -> None:
    small, [large] = numbered(2), incompressible(1, 1_500_000, seed=1)
    idempotent = None if TRAITS[client.name].idempotent_producer_goes_on else False
    options = ProduceOptions(request_bytes=4_000_000, one_by_one=True, idempotent=idempotent)
    outcomes = client.produce(topic, [small[0], large, small[1]], options)
    assert [outcome.error for outcome in outcomes] == [0, MESSAGE_TOO_LARGE, 0]
    assert contents(client.consume(topic, "earliest", 2)) == contents(small)


def test_ten_megabytes_in_batches_of_one_come_back_byte_for_byte(client: Client, topic: str) -> None:
    records = incompressible(160, 65_536, seed=7)
    assert failures(client.produce(topic, records, ProduceOptions(batch_bytes=1_000_000))) == []
    read = client.consume(topic, "earliest", len(records))
    # The test compares records one by one, so that a failure names the record instead of showing megabytes.
    assert len(read) == len(records)
    differing = [n for n, (got, sent) in enumerate(zip(read, records, strict=True)) if got.value != sent.value]
    assert differing == []
