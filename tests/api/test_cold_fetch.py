"""Fetch of records that only a tier has, against a real front-end with a directory."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import anyio
import pytest

from korvet.store.keys import Namespace
from korvet.tier.objects import open_objects
from tests.api.data import connected, epoch_end, fetch, fetch_request, offsets, partitions_of, produced, records, wanted
from tests.api.raw import create_topics, unique
from tests.store.logs import front
from tests.store.sealed import seal
from tests.support.broker import KorvetServer, running_broker
from tests.support.scraping import scrape_until, total
from tests.support.waiting import until

LONG_MS = 20_000
FOREVER_MS = 600_000
"""A Fetch that waits so long fails its test."""


@pytest.fixture(scope="module")
def tiered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KorvetServer]:
    with running_broker(tier=str(tmp_path_factory.mktemp("tier"))) as broker:
        yield broker


def sealed(broker: KorvetServer, topic: str, bounds: Sequence[int]) -> list[Path]:
    """Put the batches of partition 0 between each two bounds into a segment, and trim Redis. Returns the files."""

    async def work() -> list[str]:
        assert broker.tier is not None
        async with front(f"unix://{broker.embedded_socket}", Namespace("default")) as one:
            found = one.catalog.topic(topic)
            assert found is not None
            return await seal(one, open_objects(broker.tier), one.log.partition(found, 0), bounds, namespace="default")

    return [Path(broker.tier or "") / path for path in anyio.run(work, backend_options={"use_uvloop": True})]


def new_topic(broker: KorvetServer, batches: int = 10, size: int = 10) -> str:
    """A topic with batches of three records in partition 0."""
    (result,) = create_topics(broker.port, {"name": unique(), "num_partitions": 2})
    produced(broker.port, result["name"], *(records(3, size) for _ in range(batches)))
    return str(result["name"])


@contextmanager
def hanging(path: Path) -> Iterator[None]:
    """Reads of a file hang for the time of the block."""
    aside = path.with_suffix(".aside")
    path.rename(aside)
    os.mkfifo(path)
    try:
        yield
    finally:
        pipe = os.open(path, os.O_RDWR)
        aside.rename(path)
        # Whoever waits for a writer has got one, and then reads the end.
        time.sleep(0.1)
        os.close(pipe)


def test_batches_of_a_tier_are_those_that_redis_had(tiered: KorvetServer) -> None:
    name = new_topic(tiered)
    (hot,) = fetch(tiered.port, name, wanted(0))
    sealed(tiered, name, [0, 9, 24])
    found, offset = b"", 0
    with connected(tiered.port) as consumer:
        while offset < 30:
            (read,) = partitions_of(
                consumer.ask("fetch", 12, **fetch_request(name, wanted(offset), max_wait=LONG_MS, min_bytes=1 << 20))
            ) if offset < 24 else fetch(tiered.port, name, wanted(offset))  # fmt: skip
            assert (read["error_code"], read["log_start_offset"], read["high_watermark"]) == ("NONE", 0, 30)
            found += read["records"]
            offset = offsets(read)[-1] + 3
    assert found == hot["records"]
    assert epoch_end(tiered.port, name, 0) == (0, 30)


def test_hanging_tier_holds_up_neither_another_partition_nor_another_client(tiered: KorvetServer) -> None:
    name = new_topic(tiered)
    produced(tiered.port, name, records(), partition=1)
    (path,) = sealed(tiered, name, [0, 30])
    with connected(tiered.port) as both, connected(tiered.port) as cold, hanging(path):
        cold.send("fetch", 12, **fetch_request(name, wanted(3), max_wait=300))
        for _ in range(20):
            asked = fetch_request(name, wanted(0), wanted(0, 1), max_wait=FOREVER_MS)
            reads = partitions_of(both.ask("fetch", 12, **asked))
            assert [(read["error_code"], offsets(read)) for read in reads] == [("NONE", []), ("NONE", [0])]
        (late,) = partitions_of(cold.receive())
        assert (late["error_code"], offsets(late), late["high_watermark"]) == ("NONE", [], 30)
        # Records wake a Fetch that waits for the tier, too.
        both.send("fetch", 12, **fetch_request(name, wanted(0), wanted(3, 1), max_wait=FOREVER_MS))
        produced(tiered.port, name, records(), partition=1)
        assert [offsets(read) for read in partitions_of(both.receive())] == [[], [3]]
    (read,) = fetch(tiered.port, name, wanted(3), max_wait=LONG_MS)
    assert offsets(read)[0] == 3


def test_fetch_that_waits_for_the_tier_gets_its_records_when_they_come(tiered: KorvetServer) -> None:
    name = new_topic(tiered)
    (path,) = sealed(tiered, name, [0, 30])
    with connected(tiered.port) as cold:
        with hanging(path):
            cold.send("fetch", 12, **fetch_request(name, wanted(6), wanted(0, 1), max_wait=3 * LONG_MS))
            time.sleep(0.3)
        reads = partitions_of(cold.receive())
        assert [(read["error_code"], offsets(read)[:1]) for read in reads] == [("NONE", [6]), ("NONE", [])]


def test_damaged_segment_is_named_in_one_line(tiered: KorvetServer) -> None:
    name = new_topic(tiered)
    _, second = sealed(tiered, name, [0, 15, 30])
    data = bytearray(second.read_bytes())
    data[100] ^= 1
    second.write_bytes(data)
    began = time.monotonic()
    for _ in range(3):
        (bad,) = fetch(tiered.port, name, wanted(15), max_wait=500)
        assert bad["error_code"] in ("NONE", "CORRUPT_MESSAGE")
        assert not bad["records"]
    assert bad["error_code"] == "CORRUPT_MESSAGE"
    # Clients repeat the request at once after such a code.
    assert time.monotonic() - began > 1
    assert offsets(fetch(tiered.port, name, wanted(3), max_wait=LONG_MS)[0])[0] == 3
    lines = [line for line in tiered.log.splitlines() if second.name in line]
    assert len(lines) == 1
    assert f"korvet topics trim {name} --partition 0 --before 30 --execute" in lines[0]


def test_many_readers_of_cold_records_all_get_them(tiered: KorvetServer) -> None:
    name = new_topic(tiered, 60, 20_000)
    sealed(tiered, name, [0, 90, 180])
    counts: list[int] = []

    def read() -> None:
        offset, count = 0, 0
        with connected(tiered.port) as consumer:
            while offset < 180:
                asked = fetch_request(name, wanted(offset, max_bytes=200_000), max_wait=LONG_MS)
                (found,) = partitions_of(consumer.ask("fetch", 12, **asked))
                count += len(offsets(found))
                offset = offsets(found)[-1] + 3
        counts.append(count)

    threads = [threading.Thread(target=read) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counts == [60] * 8


def test_metrics_count_what_the_tier_gave(tmp_path: Path) -> None:
    with running_broker(tier=str(tmp_path / "tier"), has_metrics=True) as broker:
        name = new_topic(broker)
        sealed(broker, name, [0, 30])
        for _ in range(2):
            (read,) = fetch(broker.port, name, wanted(0), max_wait=LONG_MS)
        figures = scrape_until(
            broker.metrics_port,
            lambda found: total(found, "korvet_reads_total", source="tier") == 2,
            "both reads are counted",
        )
        assert total(figures, "korvet_tier_read_bytes_total") == 2 * len(read["records"])
        assert total(figures, "korvet_tier_request_seconds_count") == 2
        assert total(figures, "korvet_tier_blocks_total", source="store") == 2


def test_search_for_a_time_in_a_hanging_tier_holds_up_no_other_client(tiered: KorvetServer) -> None:
    names = [new_topic(tiered) for _ in range(3)]
    paths = [sealed(tiered, name, [0, 30])[0] for name in names]
    parts = [{"partition_index": index, "current_leader_epoch": -1, "timestamp": 1} for index in (0, 1)]
    topics = [{"name": name, "partitions": parts} for name in names]
    with connected(tiered.port) as consumer:
        with ExitStack() as stack:
            for path in paths:
                stack.enter_context(hanging(path))
            consumer.send("list_offsets", 10, replica_id=-1, isolation_level=0, topics=topics, timeout=0)
            assert offsets(fetch(tiered.port, names[0], wanted(0, 1), max_wait=1)[0]) == []
        answer = consumer.receive()
    found = {
        one["name"]: [(part["error_code"], part["offset"]) for part in one["partitions"]] for one in answer["topics"]
    }
    assert found == {name: [("NONE", 0), ("NONE", -1)] for name in names}


def test_cache_on_a_disk_outlives_a_killed_front_end(tmp_path: Path) -> None:
    with running_broker(tier=str(tmp_path / "tier"), tier_cache=tmp_path / "cache", has_metrics=True) as broker:
        name = new_topic(broker)
        sealed(broker, name, [0, 30])
        (before,) = fetch(broker.port, name, wanted(0), max_wait=LONG_MS)
        assert before["records"]
        until(lambda: sum(path.is_file() and not path.name.startswith("new-") for path in cached(tmp_path)) == 2)
        broker.restart(crash=True)
        (after,) = fetch(broker.port, name, wanted(0), max_wait=LONG_MS)
        assert after["records"] == before["records"]
        figures = scrape_until(
            broker.metrics_port, lambda found: total(found, "korvet_tier_blocks_total", source="disk") == 2, "the disk"
        )
        assert total(figures, "korvet_tier_request_seconds_count") == 0


def cached(directory: Path) -> Sequence[Path]:
    return list((directory / "cache").rglob("*"))
