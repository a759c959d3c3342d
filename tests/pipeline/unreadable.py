"""Records that clients cannot read as others: raw batches, as a faulty producer sends them."""

from __future__ import annotations

import time

from kio.schema.errors import ErrorCode

from korvet.cli.kafka.client import Client
from korvet.cli.kafka.framing import request
from korvet.cli.kafka.offsets import TopicPartition, leaders_of
from korvet.cli.kafka.records import Headers, Unsent, write_batch
from korvet.cli.kafka.topics import TIMEOUT_MS
from korvet.wire.batch import GZIP, Batch, sealed
from korvet.wire.records import varint


def store(bootstrap: str, topic: str, batch: bytes) -> None:
    """Store a batch in partition 0 as it is. The broker opens no batches of a client that it takes for librdkafka."""
    with Client(bootstrap) as client:
        partition = TopicPartition(topic, 0)
        leader = leaders_of(client, [partition])[partition]
        name = request("api_versions", 3, client_software_name="librdkafka", client_software_version="2.16.0")
        assert client.ask(name, leader).error_code == ErrorCode.none
        data = {"name": topic, "partition_data": [{"index": 0, "records": [batch]}]}
        answer = client.ask(request("produce", 9, acks=-1, timeout=TIMEOUT_MS, topic_data=[data]), leader)
    assert answer.responses[0].partition_responses[0].error_code == ErrorCode.none


def batch_of(*values: bytes, headers: Headers = ()) -> bytes:
    """A batch of records with the same headers."""
    now = int(time.time() * 1000)
    return write_batch([Unsent(None, value, headers, now) for value in values], 0)


def undecodable(records: int) -> bytes:
    """A batch whose records are no gzip stream."""
    return sealed(_header(GZIP, records), b"no gzip stream")[1]


def misplaced(*deltas: int) -> bytes:
    """A batch of records with these offsets from its first one on."""
    return sealed(_header(0, len(deltas)), b"".join(_record(delta, b"%d" % delta) for delta in deltas))[1]


def senseless(records: int) -> bytes:
    """A batch of uncompressed records, of which the second one claims to be longer than the batch."""
    batch, body = _header(0, records), _record(0, b"whole")
    return sealed(batch, body + (varint(70_000) + b"\0" * 8) * (records - 1))[1]


def _header(codec: int, records: int) -> Batch:
    now = int(time.time() * 1000)
    return Batch(0, 0, -1, 2, 0, codec, records - 1, now, now, -1, -1, -1, records)


def _record(delta: int, value: bytes) -> bytes:
    inner = b"\0\0" + varint(delta) + varint(-1) + varint(len(value)) + value + b"\0"
    return varint(len(inner)) + inner
