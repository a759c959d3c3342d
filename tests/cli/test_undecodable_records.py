"""Records that ``topics consume`` cannot decode."""

from __future__ import annotations

import json

import pytest
from crc32c import crc32c

from korvet.cli import run
from korvet.cli.kafka.records import (
    CODECS,
    Record,
    Stored,
    Undecodable,
    Unsent,
    read_batches,
    read_records,
    write_batch,
)
from korvet.wire.batch import HEADER, HEADER_BYTES, LENGTH_FROM, Batch
from tests.api.raw import created
from tests.cli.records import store
from tests.pipeline import unreadable
from tests.support.broker import KorvetServer
from tests.support.times import MIDNIGHT_MS


def garbled(records: list[bytes], garbage: bytes) -> bytes:
    """A batch that promises one record more than it holds, and ends in garbage; its checksum is right."""
    whole = write_batch([Unsent(None, value, [], MIDNIGHT_MS) for value in [*records, b""]], 0)
    (stored,) = read_batches(whole)
    assert isinstance(stored, Stored)
    body = whole[HEADER_BYTES:-7] + garbage
    return _with_body(stored.batch, body)


def _with_body(batch: Batch, body: bytes) -> bytes:
    batch = batch._replace(length=HEADER_BYTES - LENGTH_FROM + len(body))
    data = HEADER.pack(*batch) + body
    return HEADER.pack(*batch._replace(crc=crc32c(data[21:]))) + body


def test_records_before_garbage_in_a_batch_are_read() -> None:
    (stored,) = read_batches(garbled([b"a", b"b"], b"\x7f\xff"))
    assert isinstance(stored, Stored)
    first, second, left = read_records(stored)
    assert isinstance(first, Record) and isinstance(second, Record)
    assert (first.value, second.value, left) == (b"a", b"b", Undecodable(2, 2, "a record of -64 bytes, and 1 are left"))


def test_batch_that_was_changed_is_not_decoded() -> None:
    good = write_batch([Unsent(None, b"a", [], MIDNIGHT_MS)], 0)
    assert list(read_batches(good[:-1] + b"x")) == [Undecodable(0, 0, "the checksum of its batch is wrong")]
    assert list(read_batches(good[:-1])) == []
    (old, after) = read_batches(good[:16] + b"\x01" + good[17:] + good)
    assert old == Undecodable(0, 0, "its message format is 1, and not 2")
    assert isinstance(after, Stored)


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_compressed_garbage_is_undecodable(codec: str) -> None:
    (stored,) = read_batches(write_batch([Unsent(None, b"a" * 100, [], MIDNIGHT_MS)], CODECS[codec]))
    assert isinstance(stored, Stored)
    for body in (b"", b"garbage", stored.data[HEADER_BYTES : HEADER_BYTES + 12]):
        (found,) = read_batches(_with_body(stored.batch, body))
        assert isinstance(found, Stored)
        (item,) = read_records(found)
        assert isinstance(item, Undecodable) and item.offset == 0, item


def test_undecodable_records_are_named_and_the_others_shown(
    broker: KorvetServer, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    created(broker.port, name)
    store(broker, name, b"before")
    unreadable.store(broker.bootstrap, name, garbled([b"good"], b"\x7f\xff"))
    store(broker, name, b"behind")
    code = run(["topics", "consume", name, "-b", broker.bootstrap])
    out, err = capsys.readouterr()
    assert (code, out) == (1, "before\ngood\nbehind\n")
    assert err.startswith(
        f"{name}-0@2 cannot be decoded: a record of -64 bytes, and 1 are left; read on after it with -p 0"
    )
    assert run(["topics", "consume", name, "-b", broker.bootstrap, "--json"]) == 1
    out, err = capsys.readouterr()
    assert json.loads(out.splitlines()[2]) == {
        "topic": name,
        "partition": 0,
        "offset": 2,
        "last_offset": 2,
        "error": "a record of -64 bytes, and 1 are left",
    }
    assert err == ""


def test_partition_that_the_broker_finds_corrupt_is_named_and_left(
    broker: KorvetServer, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    created(broker.port, name)
    store(broker, name, b"good")
    with broker.redis() as server:
        server.execute_command("XADD", f"korvet:{{default:{name}:0}}:log", "9-0", "foo", "bar")
    assert run(["topics", "consume", name, "--follow", "-b", broker.bootstrap]) == 1
    out, err = capsys.readouterr()
    assert out == "good\n"
    assert err.startswith(f"{name}-0@1 cannot be decoded: the broker finds it corrupt, and its log says more; ")
