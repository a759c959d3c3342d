"""A task of the source, without Spark, at records that the client cannot read."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from time import sleep
from typing import Any

import pytest
from confluent_kafka import KafkaError

from korvet.pipeline.errors import PipelineError
from korvet.pipeline.plan.losses import UnreadableRange
from korvet.pipeline.source import rows
from korvet.pipeline.source.fetch import CHUNK_BYTES, _Fetching, fetch
from korvet.pipeline.source.ranges import OffsetRange
from korvet.pipeline.source.rows import RowBuilder
from korvet.pipeline.source.unreadable import Unreadable, first_beyond, place_in, unreadable
from tests.pipeline.sourcing import create
from tests.pipeline.test_source_fetch import offsets, options
from tests.pipeline.unreadable import batch_of, misplaced, senseless, store, undecodable
from tests.support.broker import KorvetServer


def test_header_names_of_any_bytes_become_the_names_that_java_reads(broker: KorvetServer) -> None:
    create(broker, "fetch-names")
    names = [b"a\xff\xfeb", b"plain", b"\xc3("]
    store(broker.bootstrap, "fetch-names", batch_of(b"1", headers=[(name, b"x") for name in names]))
    store(broker.bootstrap, "fetch-names", batch_of(b"2"))
    (messages,) = fetch(OffsetRange("fetch-names", 0, 0, 2), options(broker))
    made = RowBuilder("fetch-names", 0, include_headers=True).build(messages)
    first, second = made.column("headers").to_pylist()
    assert first == [{"key": name.decode(errors="replace"), "value": b"x"} for name in names] and second is None
    with pytest.raises(UnicodeDecodeError):
        names[0].decode()


def test_threads_may_read_such_names_at_once() -> None:
    def read() -> None:
        for _ in range(500):
            with rows._names_of_any_bytes():
                sleep(0)
                assert b"a\xff".decode() == "a\ufffd"

    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(read) for _ in range(4)]:
            done.result()


def test_lists_of_records_are_bounded_by_keys_and_headers_too(broker: KorvetServer) -> None:
    create(broker, "fetch-headers")
    count = 50
    for _ in range(count):
        store(broker.bootstrap, "fetch-headers", batch_of(b"", headers=[(b"h", b"x" * 900_000)]))
    counts = [len(found) for found in fetch(OffsetRange("fetch-headers", 0, 0, count), options(broker))]
    assert sum(counts) == count
    # Behind a list's bound may come what the client holds in advance.
    assert max(counts) * 900_000 <= CHUNK_BYTES + (32 << 20) + (4 << 20)


def test_task_skips_exactly_the_undecodable_batches(broker: KorvetServer) -> None:
    create(broker, "fetch-undecodable")
    for batch in (
        batch_of(b"0", b"1"),
        undecodable(5),
        batch_of(b"7"),
        undecodable(1),
        undecodable(2),
        batch_of(b"11"),
    ):
        store(broker.bootstrap, "fetch-undecodable", batch)
    how = replace(options(broker), skip_unreadable=True)
    found: list[UnreadableRange] = []
    read = [
        message.offset()
        for messages in fetch(OffsetRange("fetch-undecodable", 0, 0, 12), how, found)
        for message in messages
    ]
    assert read == [0, 1, 7, 11]
    assert [(each.start, each.end) for each in found] == [(2, 7), (8, 9), (9, 11)]
    few: list[UnreadableRange] = []
    how = replace(how, most_unreadable=2)
    assert sum(map(len, fetch(OffsetRange("fetch-undecodable", 0, 0, 12), how, few))) == 3 and few == found[:2]
    # What ends below such a batch is not concerned.
    assert offsets(OffsetRange("fetch-undecodable", 0, 0, 2), options(broker)) == [0, 1]


def test_task_that_may_lose_nothing_names_the_undecodable_batch(broker: KorvetServer) -> None:
    create(broker, "fetch-names-it")
    for batch in (batch_of(b"0"), undecodable(2)):
        store(broker.bootstrap, "fetch-names-it", batch)
    with pytest.raises(Unreadable) as refused:
        offsets(OffsetRange("fetch-names-it", 0, 0, 3), options(broker))
    assert place_in(f"Job aborted: Traceback\n{refused.value}\n") == (0, 1)
    assert "failOnDataLoss" in str(refused.value)


def test_task_skips_exactly_the_records_whose_lengths_lead_out_of_their_batch(broker: KorvetServer) -> None:
    create(broker, "fetch-senseless")
    batches = (
        batch_of(b"0"),
        senseless(3),
        batch_of(b"4"),
        senseless(5),
        undecodable(2),
        senseless(2),
        batch_of(b"14"),
    )
    for batch in batches:
        store(broker.bootstrap, "fetch-senseless", batch)
    how = replace(options(broker), poll_timeout_s=4)
    wanted = OffsetRange("fetch-senseless", 0, 0, 15)
    with pytest.raises(Unreadable, match="lead out of its batch"):
        offsets(wanted, how)
    found: list[UnreadableRange] = []
    read = [m.offset() for messages in fetch(wanted, replace(how, skip_unreadable=True), found) for m in messages]
    assert read == [0, 1, 4, 5, 12, 14]
    assert [(each.start, each.end) for each in found] == [(2, 4), (6, 10), (10, 12), (13, 14)]


def test_record_beyond_the_log_hides_no_record_after_it(broker: KorvetServer) -> None:
    create(broker, "fetch-misplaced")
    for batch in (misplaced(0, 50_000), *(batch_of(b"%d" % n) for n in range(2, 12)), misplaced(0, 2**31 - 1)):
        store(broker.bootstrap, "fetch-misplaced", batch)
    wanted = OffsetRange("fetch-misplaced", 0, 0, 14)
    with pytest.raises(Unreadable, match="offset 1 on cannot be read: a record has an offset that the log does not"):
        offsets(wanted, options(broker))
    found: list[UnreadableRange] = []
    read = [m.offset() for each in fetch(wanted, replace(options(broker), skip_unreadable=True), found) for m in each]
    assert read == [0, *range(2, 13)] and [(each.start, each.end) for each in found] == [(1, 2), (13, 14)]


def test_codec_that_the_client_lacks_makes_no_record_unreadable(broker: KorvetServer) -> None:
    nothing: Any = None
    how = replace(options(broker), skip_unreadable=True)
    fetching = _Fetching(nothing, {}, OffsetRange("a", 0, 0, 9), how, [])
    with pytest.raises(PipelineError, match="records of a-0: _NOT_IMPLEMENTED"):
        fetching._handle(KafkaError(KafkaError._NOT_IMPLEMENTED), 0)


def test_error_of_another_kind_names_no_place() -> None:
    assert place_in("Offsets 1 up to 2 of a-0 cannot be read: the log ends") is None
    assert place_in(str(unreadable("a-b.c-1", 7, 42, "Decompression failed", "skip"))) == (7, 42)


@pytest.mark.parametrize("length", [1, 2, 3, 7, 8, 1000, 1_000_000])
@pytest.mark.parametrize("behind", [0, 1, 5])
def test_search_finds_the_end_of_a_batch_in_few_steps(length: int, behind: int) -> None:
    asked: list[int] = []

    def is_beyond(offset: int) -> bool:
        asked.append(offset)
        return offset >= 100 + length

    assert first_beyond(is_beyond, 100, 100 + length + behind) == 100 + length
    assert len(asked) <= 2 * length.bit_length() + 1 and all(100 < offset < 100 + length + behind for offset in asked)
