"""A task of the source, without Spark, reads its range and ends, also if the log changes meanwhile."""

from __future__ import annotations

import gc
import socket
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import pytest
from confluent_kafka import KafkaError, Producer

from korvet.pipeline.broker import Broker, explained
from korvet.pipeline.errors import BrokerUnreachable, PipelineError, UnknownTopic
from korvet.pipeline.source.cluster import Cluster
from korvet.pipeline.source.fetch import CHUNK_BYTES, CHUNK_ROWS, FetchOptions, close_idle, fetch
from korvet.pipeline.source.options import stream_options
from korvet.pipeline.source.ranges import OffsetRange
from tests.pipeline.sourcing import create, delete, produce, transact, trim
from tests.support.broker import KorvetServer


@pytest.fixture(scope="module", autouse=True)
def idle_consumers() -> Iterator[None]:
    yield
    close_idle()


def options(
    broker: KorvetServer,
    client: Mapping[str, str] = MappingProxyType({}),
    *,
    committed: bool = False,
    fail: bool = True,
) -> FetchOptions:
    return FetchOptions(
        client={"bootstrap.servers": broker.bootstrap, "group.id": "tests", **client},
        read_committed=committed,
        fail_on_data_loss=fail,
        poll_timeout_s=60,
    )


def offsets(wanted: OffsetRange, how: FetchOptions) -> list[int]:
    found = [message.offset() for messages in fetch(wanted, how) for message in messages]
    return [offset for offset in found if offset is not None]


def values(wanted: OffsetRange, how: FetchOptions) -> list[bytes]:
    return [message.value() or b"" for messages in fetch(wanted, how) for message in messages]


def test_task_reads_its_range_and_nothing_else(broker: KorvetServer) -> None:
    create(broker, "fetch-range", 2)
    for partition in (0, 1):
        produce(broker, "fetch-range", [b"%d-%d" % (partition, n) for n in range(5_000)], partition=partition)
    assert offsets(OffsetRange("fetch-range", 1, 100, 4_900), options(broker)) == list(range(100, 4_900))
    # The kept consumer reads the other partition, and backwards.
    assert values(OffsetRange("fetch-range", 0, 7, 9), options(broker)) == [b"0-7", b"0-8"]
    assert values(OffsetRange("fetch-range", 1, 3, 4), options(broker)) == [b"1-3"]
    lengths = [len(found) for found in fetch(OffsetRange("fetch-range", 0, 0, 5_000), options(broker))]
    assert sum(lengths) == 5_000 and max(lengths) <= CHUNK_ROWS


def test_large_records_come_in_lists_that_memory_has_room_for(broker: KorvetServer) -> None:
    create(broker, "fetch-large")
    large, count = b"x" * 900_000, 50
    produce(broker, "fetch-large", [large] * count)
    sizes = [sum(map(len, found)) for found in fetch(OffsetRange("fetch-large", 0, 0, count), options(broker))]
    assert sum(sizes) == count * len(large)
    # Behind a list's bound may come what the client holds in advance.
    assert max(sizes) <= CHUNK_BYTES + (32 << 20) + (4 << 20) and len(sizes) > 1


def test_records_start_no_search_for_cycles(broker: KorvetServer) -> None:
    create(broker, "fetch-cycles")
    produce(broker, "fetch-cycles", [b"%d" % n for n in range(10_000)])
    searches: list[str] = []
    gc.collect()  # Otherwise a search may be due.
    gc.callbacks.append(count := lambda phase, _: searches.append(phase))
    try:
        for messages in fetch(OffsetRange("fetch-cycles", 0, 0, 10_000), options(broker)):
            assert messages and not searches
    finally:
        gc.callbacks.remove(count)


def test_python_searches_for_cycles_as_before_after_a_range_however_it_ended(broker: KorvetServer) -> None:
    create(broker, "fetch-searches")
    produce(broker, "fetch-searches", [b"%d" % n for n in range(3)])
    before = gc.get_threshold()
    found = fetch(OffsetRange("fetch-searches", 0, 0, 3), options(broker))
    next(found)
    assert gc.get_threshold()[0] > before[0]
    found.close()
    assert gc.get_threshold() == before
    with pytest.raises(PipelineError):
        offsets(OffsetRange("fetch-searches", 0, 0, 4), options(broker))
    assert gc.get_threshold() == before
    assert offsets(OffsetRange("fetch-searches", 0, 0, 3), options(broker)) == [0, 1, 2]
    assert gc.get_threshold() == before


def test_python_set_never_to_search_for_cycles_stays_so(broker: KorvetServer) -> None:
    create(broker, "fetch-no-cycles")
    produce(broker, "fetch-no-cycles", [b"0", b"1"])
    kept = gc.get_threshold()
    gc.set_threshold(0)
    try:
        found = fetch(OffsetRange("fetch-no-cycles", 0, 0, 2), options(broker))
        next(found)
        assert gc.get_threshold()[0] == 0
        assert not list(found)
    finally:
        gc.set_threshold(*kept)


def test_task_ended_early_leaves_the_next_a_clean_start(broker: KorvetServer) -> None:
    create(broker, "fetch-early")
    produce(broker, "fetch-early", [b"%d" % n for n in range(5_000)])
    found = fetch(OffsetRange("fetch-early", 0, 0, 5_000), options(broker))
    next(found)
    found.close()
    assert values(OffsetRange("fetch-early", 0, 1, 3), options(broker)) == [b"1", b"2"]


def test_task_does_not_wait_for_markers_at_the_ranges_end(broker: KorvetServer) -> None:
    create(broker, "fetch-markers")
    transact(broker, "fetch-markers", [b"a", b"b"], commit=True)
    transact(broker, "fetch-markers", [b"c"], commit=False)
    whole = OffsetRange("fetch-markers", 0, 0, 5)
    assert values(whole, options(broker, committed=True)) == [b"a", b"b"]
    assert values(whole, options(broker)) == [b"a", b"b", b"c"]
    # The ranges hold only a marker, and only aborted records.
    assert values(OffsetRange("fetch-markers", 0, 2, 3), options(broker, committed=True)) == []
    assert values(OffsetRange("fetch-markers", 0, 3, 5), options(broker, committed=True)) == []
    produce(broker, "fetch-markers", [b"d"])
    assert values(OffsetRange("fetch-markers", 0, 2, 5), options(broker, committed=True)) == []


def test_task_waits_for_an_open_transaction_in_its_range(broker: KorvetServer) -> None:
    create(broker, "fetch-open")
    produce(broker, "fetch-open", [b"a"])
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": "fetch-open"})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce("fetch-open", b"b")
    assert producer.flush(30) == 0
    committed = options(broker, committed=True, fail=False)
    with pytest.raises(BrokerUnreachable, match=r"fetch-open-0 from offset 1 on .* a transaction is open there"):
        values(OffsetRange("fetch-open", 0, 0, 2), replace(committed, poll_timeout_s=10))
    producer.commit_transaction(30)
    assert values(OffsetRange("fetch-open", 0, 0, 2), committed) == [b"a", b"b"]


def test_trimmed_offsets_fail_the_task_or_are_skipped(broker: KorvetServer) -> None:
    create(broker, "fetch-trimmed")
    produce(broker, "fetch-trimmed", [b"%d" % n for n in range(10)], settings={"batch.num.messages": "1"})
    trim(broker, {("fetch-trimmed", 0): 4})
    whole = OffsetRange("fetch-trimmed", 0, 2, 10)
    with pytest.raises(PipelineError, match=r"Offsets 2 up to 4 of fetch-trimmed-0 cannot be read.*failOnDataLoss"):
        offsets(whole, options(broker))
    assert offsets(whole, options(broker, fail=False)) == list(range(4, 10))
    assert offsets(OffsetRange("fetch-trimmed", 0, 0, 3), options(broker, fail=False)) == []


def test_log_that_ends_before_the_range_fails_the_task_or_is_skipped(broker: KorvetServer) -> None:
    create(broker, "fetch-short")
    produce(broker, "fetch-short", [b"0", b"1"])
    with pytest.raises(PipelineError, match="Offsets 2 up to 5 of fetch-short-0 cannot be read: the log ends at 2"):
        offsets(OffsetRange("fetch-short", 0, 0, 5), options(broker))
    assert offsets(OffsetRange("fetch-short", 0, 0, 5), options(broker, fail=False)) == [0, 1]
    with pytest.raises(PipelineError, match=r"Offsets 7 up to 9 .* from 0 up to 2 now"):
        offsets(OffsetRange("fetch-short", 0, 7, 9), options(broker))
    assert offsets(OffsetRange("fetch-short", 0, 7, 9), options(broker, fail=False)) == []


def test_deleted_topic_fails_the_task_or_is_skipped(broker: KorvetServer) -> None:
    create(broker, "fetch-deleted")
    produce(broker, "fetch-deleted", [b"0"])
    delete(broker, "fetch-deleted")
    gone = OffsetRange("fetch-deleted", 0, 0, 1)
    with pytest.raises(UnknownTopic, match="fetch-deleted-0 cannot be read: the topic or partition does not exist"):
        offsets(gone, options(broker))
    assert offsets(gone, options(broker, fail=False)) == []


def test_error_without_a_broker_names_the_address() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        how = FetchOptions(
            client={"bootstrap.servers": address, "group.id": "tests"},
            read_committed=False,
            fail_on_data_loss=True,
            poll_timeout_s=1,
        )
        with pytest.raises(BrokerUnreachable, match=f"t-0 from offset 3 on came from {address} within 1 s"):
            offsets(OffsetRange("t", 0, 3, 4), how)


def test_error_names_settings_unknown_to_the_client(broker: KorvetServer) -> None:
    with pytest.raises(PipelineError, match=r'No such configuration property: "no\.such\.setting"'):
        offsets(OffsetRange("t", 0, 0, 1), options(broker, {"no.such.setting": "1"}))
    mistaken = {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": "t", "kafka.no.such.setting": "1"}
    with pytest.raises(PipelineError, match=r'No such configuration property: "no\.such\.setting"'):
        Cluster(stream_options(mistaken)).partitions()


def test_pattern_leaves_out_a_topic_deleted_meanwhile(broker: KorvetServer, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("fits-1", "fits-2"):
        create(broker, name)
    names = Broker.topic_names

    def names_before_one_goes(self: Broker) -> list[str]:
        found = names(self)
        if "fits-2" in found:
            delete(broker, "fits-2")
        return found

    monkeypatch.setattr(Broker, "topic_names", names_before_one_goes)
    cluster = Cluster(stream_options({"kafka.bootstrap.servers": broker.bootstrap, "subscribePattern": "^fits-"}))
    assert cluster.partitions() == {("fits-1", 0)}
    cluster.close()


def test_query_waits_for_partitions_without_a_leader() -> None:
    # This is librdkafka's error while Redis is away.
    error = KafkaError(KafkaError._NOENT, "No leaders found")
    assert isinstance(explained("offsets of t-0", error, "broker:9092"), BrokerUnreachable)


def test_task_waits_out_an_outage(tmp_path: Path) -> None:
    server = KorvetServer(tmp_path).start()
    try:
        create(server, "outage")
        produce(server, "outage", [b"%d" % n + b"x" * 1_000 for n in range(3 * CHUNK_ROWS)])
        few = {"queued.min.messages": "1", "fetch.message.max.bytes": "100000", "fetch.max.bytes": "2000000"}
        found = fetch(OffsetRange("outage", 0, 0, 3 * CHUNK_ROWS), options(server, few))
        count = len(next(found))
        server.kill()
        server.start()
        assert count + sum(map(len, found)) == 3 * CHUNK_ROWS
        cluster = Cluster(stream_options({"kafka.bootstrap.servers": server.bootstrap, "subscribe": "outage"}))
        assert cluster.latest({}) == {("outage", 0): 3 * CHUNK_ROWS}
        server.restart(crash=True)
        assert cluster.latest({}) == {("outage", 0): 3 * CHUNK_ROWS}
        cluster.close()
    finally:
        server.kill()
