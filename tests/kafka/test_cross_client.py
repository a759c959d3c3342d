"""Every client reads the records that every other client wrote, with every codec."""

import time
from collections.abc import Callable

import pytest

from tests.kafka.client import Client
from tests.kafka.conftest import NewTopic
from tests.kafka.options import ProduceOptions, failures
from tests.kafka.records import Record, compressible, contents
from tests.kafka.traits import CODECS, NAMES, TRAITS

RECORDS_PER_CODEC = 5


def _written_by(writer: str, codec: str, at_ms: int) -> list[Record]:
    """Five records with keys and headers, and a tombstone; they have timestamps if the writer can set them."""
    prefix = f"{writer}-{codec}"
    records = [*compressible(RECORDS_PER_CODEC, prefix=prefix), Record(key=prefix.encode(), value=None, partition=0)]
    if not TRAITS[writer].writes_timestamps:
        return records
    return [
        Record(key=r.key, value=r.value, headers=r.headers, partition=0, timestamp_ms=at_ms + n)
        for n, r in enumerate(records)
    ]


@pytest.fixture(scope="module")
def written(new_topic: NewTopic, client_named: Callable[[str], Client]) -> tuple[str, dict[str, list[Record]]]:
    """One topic that every client has written to with every codec, and the records of each client."""
    topic, at_ms = new_topic(), int(time.time() * 1000) - 3_600_000
    by_writer: dict[str, list[Record]] = {}
    for writer in NAMES:
        by_writer[writer] = []
        for codec in CODECS:
            records = _written_by(writer, codec, at_ms)
            assert failures(client_named(writer).produce(topic, records, ProduceOptions(compression=codec))) == []
            by_writer[writer] += records
    return topic, by_writer


@pytest.fixture(scope="module")
def read_by(
    written: tuple[str, dict[str, list[Record]]], client_named: Callable[[str], Client]
) -> Callable[[str], list[Record]]:
    """Reads the whole topic by each client, once for each."""
    topic, by_writer = written
    total = sum(len(records) for records in by_writer.values())
    read: dict[str, list[Record]] = {}

    def reads(reader: str) -> list[Record]:
        if reader not in read:
            read[reader] = client_named(reader).consume(topic, "earliest", total)
        return read[reader]

    return reads


@pytest.mark.parametrize("reader", NAMES)
@pytest.mark.parametrize("writer", NAMES)
def test_client_reads_the_records_of_another_client(
    writer: str, reader: str, written: tuple[str, dict[str, list[Record]]], read_by: Callable[[str], list[Record]]
) -> None:
    sent = written[1][writer]
    got = [record for record in read_by(reader) if (record.key or b"").startswith(writer.encode() + b"-")]
    assert contents(got) == contents(sent)
    if TRAITS[writer].writes_timestamps:
        assert [record.timestamp_ms for record in got] == [record.timestamp_ms for record in sent]
