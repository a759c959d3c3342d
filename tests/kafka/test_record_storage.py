"""Every client produces to and consumes from a topic of records, beside records that Redis users add."""

import time
from collections.abc import Callable

import pytest

from tests.kafka.client import Client
from tests.kafka.conftest import NewTopic
from tests.kafka.options import ProduceOptions, failures
from tests.kafka.records import Record, compressible, contents
from tests.kafka.traits import CODECS, NAMES
from tests.support.broker import KorvetServer

FROM_REDIS = [Record(key=b"redis", value=b'{"a": 1}', headers=(("h", b"x"),)), Record(key=b"redis-in", value=None)]


def _written_by(writer: str) -> list[Record]:
    prefix = f"{writer}-"
    json = Record(key=prefix.encode(), value=b'{"city":"K\xc3\xb6ln","size":{"km":405.02}}', partition=0)
    return [*compressible(3, prefix=prefix), json, Record(key=prefix.encode(), value=None, partition=0)]


@pytest.fixture(scope="module")
def written(
    new_topic: NewTopic, client_named: Callable[[str], Client], broker: KorvetServer
) -> tuple[str, list[Record]]:
    """A topic of records, and the records that every client wrote and Redis users added, in order."""
    topic, everything = new_topic(korvet_storage="record", korvet_value_format="json"), []
    for index, writer in enumerate(NAMES):
        records = _written_by(writer)
        options = ProduceOptions(compression=CODECS[index % len(CODECS)])
        assert failures(client_named(writer).produce(topic, records, options)) == []
        everything += records
    unit = f"korvet:{{default:{topic}:0}}"
    with broker.redis() as client:
        names = [f"{unit}:{name}" for name in ("log", "meta", "producers")]
        client.fcall("korvet_record_append", 3, *names, "key", "redis", "value", '{"a": 1}', "header.h", "x")
        client.xadd(f"{unit}:in", {"key": "redis-in"})
        deadline = time.monotonic() + 30
        while client.xlen(names[0]) < len(everything) + 2 and time.monotonic() < deadline:
            time.sleep(0.02)
    return topic, everything


@pytest.mark.parametrize("reader", NAMES)
def test_every_client_reads_the_records_of_all(
    reader: str, written: tuple[str, list[Record]], client_named: Callable[[str], Client]
) -> None:
    topic, everything = written
    read = client_named(reader).consume(topic, "earliest", len(everything) + 2)
    assert contents(read) == contents([*everything, *FROM_REDIS])
    assert [record.offset for record in read] == list(range(len(everything) + 2))
