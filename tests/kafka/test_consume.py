"""The start of a consumer without a group: the beginning, the end, a time, or an offset."""

import time

from tests.kafka.client import At, Client, Offsets
from tests.kafka.conftest import NewTopic
from tests.kafka.process import Administrator
from tests.kafka.records import Record, contents, numbered


def _over_two_partitions(count: int) -> list[Record]:
    """Half of the records for partition 0, then half for 1, in the order in which `consume` returns them."""
    half = count // 2
    return numbered(half, partition=0, prefix="first") + numbered(half, partition=1, prefix="second")


def test_consumer_from_earliest_reads_every_record_of_every_partition(
    client: Client, administrator: Administrator, new_topic: NewTopic
) -> None:
    topic, records = new_topic(2), _over_two_partitions(40)
    administrator.produce(topic, records)
    read = client.consume(topic, "earliest", len(records))
    assert contents(read) == contents(records)
    assert [(record.partition, record.offset) for record in read] == [(p, o) for p in (0, 1) for o in range(20)]


def test_consumer_from_latest_reads_only_later_records(
    client: Client, administrator: Administrator, new_topic: NewTopic
) -> None:
    topic, later = new_topic(2), _over_two_partitions(4)
    administrator.produce(topic, numbered(10, prefix="earlier"))
    with client.open(topic, "latest") as reader:
        administrator.produce(topic, later)
        read = reader.read(len(later))
    assert sorted(record.value or b"" for record in read) == sorted(record.value or b"" for record in later)


def test_consumer_from_a_time_starts_at_the_first_record_not_before_it(
    client: Client, administrator: Administrator, topic: str
) -> None:
    start = int(time.time() * 1000) - 3_600_000
    records = [Record(value=b"%d" % n, timestamp_ms=start + 1000 * n, partition=0) for n in range(20)]
    # The records lie in several batches, so the time falls between batches and within one.
    for n in range(0, len(records), 4):
        administrator.produce(topic, records[n : n + 4])
    between = client.consume(topic, At(start + 9_500), 10)
    assert contents(between) == contents(records[10:])
    exactly = client.consume(topic, At(start + 13_000), 7)
    assert [record.timestamp_ms for record in exactly] == [record.timestamp_ms for record in records[13:]]


def test_consumer_from_an_offset_within_a_batch_reads_nothing_before_it(
    client: Client, administrator: Administrator, topic: str
) -> None:
    records = numbered(20)
    administrator.produce(topic, records)
    read = client.consume(topic, Offsets({0: 7}), 13)
    assert contents(read) == contents(records[7:])
    assert [record.offset for record in read] == list(range(7, 20))


def test_waiting_consumer_gets_new_records(client: Client, administrator: Administrator, topic: str) -> None:
    with client.open(topic, "earliest") as reader:
        for n in range(3):
            administrator.produce(topic, numbered(1, prefix=f"round-{n}"))
            assert contents(reader.read(1)) == contents(numbered(1, prefix=f"round-{n}"))
