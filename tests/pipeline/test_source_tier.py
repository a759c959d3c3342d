"""Records that lie in segments are read from the bucket: the same rows, and no Fetch."""

from __future__ import annotations

import pickle
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pyarrow as pa
import pytest
from confluent_kafka import Producer
from obstore.store import MemoryStore
from pyspark.sql import SparkSession

from korvet.pipeline import tries
from korvet.pipeline.errors import PipelineError
from korvet.pipeline.lake import ARCHIVED
from korvet.pipeline.plan.layout import TABLES
from korvet.pipeline.source import cluster, tier
from korvet.pipeline.source.fetch import close_idle
from korvet.pipeline.source.options import ReadOptions, batch_options, stream_options
from korvet.pipeline.source.ranges import TASK_BYTES, OffsetRange, Sealed, by_segments, with_segments
from korvet.pipeline.source.readers import KorvetReader, KorvetStreamReader, read_range
from korvet.pipeline.source.tier import TierUnreachable
from korvet.pipeline.source.unreadable import Unreadable
from korvet.tier.manifest import Member
from korvet.tier.objects import Directory, Objects, TierAway
from tests.kafka.test_tier import leave_to_the_tier
from tests.kafka.waiting import poll_until
from tests.pipeline.archiving import Scene
from tests.pipeline.sealing import paths, publish, seal
from tests.pipeline.sourcing import create, delete, produce, transact, trim
from tests.pipeline.test_source_equal import hashes
from tests.pipeline.unreadable import batch_of, misplaced, store, undecodable
from tests.support.broker import KorvetServer, running_broker
from tests.support.object_store import running_object_store
from tests.support.scraping import WITHIN_S, scrape, total

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


@pytest.fixture(scope="module")
def server() -> Iterator[KorvetServer]:
    with running_broker(has_metrics=True) as one:
        yield one
    close_idle()


def options(server: KorvetServer, topic: str, **more: str) -> dict[str, str]:
    given = {"kafka.bootstrap.servers": server.bootstrap, "subscribe": topic, "includeHeaders": "true"}
    return {**given, **{name.replace("__", "."): value for name, value in more.items()}}


def rows(wanted: list[OffsetRange], how: ReadOptions) -> list[dict[str, Any]]:
    found: list[pa.RecordBatch] = [batch for one in wanted for batch in read_range(one, how, skip_unreadable=False)]
    return pa.Table.from_batches(found).to_pylist() if found else []


def fill(server: KorvetServer, topic: str, seed: int) -> None:
    """Batches of all codecs, in and out of transactions of several producers, with odd keys, values and headers."""
    chance = random.Random(seed)
    create(server, topic, 1, {"message.timestamp.type": "LogAppendTime"} if seed % 3 == 2 else {})
    texts = [None, b"", b"x" * 300, b"\x00\xff", b"k"]
    headers: list[Any] = [None, [], [("a", b"1"), ("a", None), ("", b"")], [("ä\u20ac", b"\xff"), ("b\0c", b"z" * 200)]]
    producers = []
    for at in range(3):
        kind = {"transactional.id": f"{topic}-{at}"} if at else {}
        settings = {"compression.type": chance.choice(CODECS), "linger.ms": 50, **kind}
        producers.append(Producer({"bootstrap.servers": server.bootstrap, **settings}))
        if at:
            producers[at].init_transactions(30)
    opened = [True, False, False]
    for _ in range(40):
        at = chance.randrange(3)
        if not opened[at]:
            producers[at].begin_transaction()
            opened[at] = True
        for _ in range(chance.choice([1, 2, 70])):
            stamp = chance.choice([0, 1_700_000_000_000 - chance.randrange(10**9), 5])
            key, value = chance.choice(texts), chance.choice(texts)
            producers[at].produce(topic, value, key, 0, timestamp=stamp, headers=chance.choice(headers))
        producers[at].flush(30)
        if at and chance.random() < 0.6:
            chance.choice([producers[at].commit_transaction, producers[at].abort_transaction])(30)
            opened[at] = False
    for at in (1, 2):
        if opened[at]:
            producers[at].abort_transaction(30)


@pytest.mark.parametrize("seed", range(3))
def test_rows_from_segments_are_those_from_the_broker(server: KorvetServer, tmp_path: Path, seed: int) -> None:
    topic, chance = f"equal-{seed}", random.Random(seed)
    fill(server, topic, seed)
    snapshot = seal(server, topic, tmp_path, 5, left=3, shelved=2)
    for isolation in ("read_uncommitted", "read_committed"):
        plain = options(server, topic, kafka__isolation__level=isolation)
        whole = batch_options({**plain, "tier.url": str(tmp_path)})
        planned = KorvetReader(whole).partitions()
        assert [one.sealed is not None for one in planned] == [True, False]
        (expected,) = KorvetReader(batch_options(plain)).partitions()
        table = rows([expected], batch_options(plain))
        assert isolation == "read_uncommitted" or len(table) < snapshot.tier_end
        assert rows(planned, whole) == table and len(table) > 50
        for _ in range(25):
            start, end = sorted(chance.sample(range(expected.end + 1), 2))
            part = with_segments(OffsetRange(topic, 0, start, end), planned[0].sealed)
            assert (part.sealed is not None) == (start < snapshot.tier_end)
            assert rows([part], whole) == [row for row in table if start <= row["offset"] < end]


def test_full_read_costs_the_broker_no_fetch(server: KorvetServer, tmp_path: Path) -> None:
    create(server, "quiet")
    size = 400_000
    produce(server, "quiet", [bytes(400)] * 1_000, settings={"batch.num.messages": "100"})
    seal(server, "quiet", tmp_path, 4)
    how = batch_options(options(server, "quiet", tier__url=str(tmp_path)))
    before = settled(server, 0)
    found = [rows(wanted, how) for wanted in (KorvetReader(how).partitions(), [OffsetRange("quiet", 0, 0, 1_000)])]
    assert found[0] == found[1] and len(found[0]) == 1_000
    # The second read, without segments, is all that the broker served.
    assert size < settled(server, before + size) - before < 1.5 * size


def settled(server: KorvetServer, least: float) -> float:
    """The bytes of answers to Fetch requests, once they are so many and grow no more. A figure may be a second old."""
    found, deadline = -1.0, time.monotonic() + WITHIN_S
    while True:
        time.sleep(1.5)
        last, found = found, total(scrape(server.metrics_port), "korvet_response_bytes_total", api="Fetch")
        if found == last and found >= least:
            return found
        assert time.monotonic() < deadline, (found, least)


def planned(server: KorvetServer, topic: str, root: Path | str, **more: str) -> tuple[list[OffsetRange], ReadOptions]:
    how = batch_options(options(server, topic, tier__url=str(root), **more))
    return KorvetReader(how).partitions(), how


def offsets(wanted: list[OffsetRange], how: ReadOptions) -> list[int]:
    return [row["offset"] for row in rows(wanted, how)]


def test_deleted_records_stay_unread(server: KorvetServer, tmp_path: Path) -> None:
    create(server, "trimmed")
    produce(server, "trimmed", [b"%d" % n for n in range(30)], settings={"batch.num.messages": "5"})
    seal(server, "trimmed", tmp_path, 2)
    trim(server, {("trimmed", 0): 7})
    assert offsets(*planned(server, "trimmed", tmp_path)) == list(range(7, 30))
    from_2 = {"startingOffsets": '{"trimmed":{"0":2}}'}
    wanted, how = planned(server, "trimmed", tmp_path, **from_2)
    assert [one.start for one in wanted] == [2, 7]
    with pytest.raises(PipelineError, match="Offsets 2 up to 7 of trimmed-0 cannot be read"):
        rows(wanted, how)
    assert offsets(*planned(server, "trimmed", tmp_path, **from_2, failOnDataLoss="false")) == list(range(7, 30))
    # What the snapshot lists may all be gone.
    trim(server, {("trimmed", 0): 30})
    assert planned(server, "trimmed", tmp_path)[0] == []


def test_broker_serves_what_was_deleted_from_the_bucket_meanwhile(
    server: KorvetServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    create(server, "retained")
    produce(server, "retained", [b"%d" % n for n in range(30)], settings={"batch.num.messages": "5"})
    snapshot = seal(server, "retained", tmp_path, 3, shelved=2)
    wanted, how = planned(server, "retained", tmp_path)
    paths(tmp_path, snapshot)[1].unlink()
    assert offsets(wanted, how) == list(range(30))
    assert "segment does not exist: the broker is asked for the records from 10 on" in caplog.text
    (tmp_path / snapshot.members[0].path(snapshot.folder)).unlink()
    assert planned(server, "retained", tmp_path)[0] == [OffsetRange("retained", 0, 0, 30)]
    assert "shelf does not exist: the broker is asked for the records of retained-0" in caplog.text
    trim(server, {("retained", 0): 25})
    with pytest.raises(PipelineError, match="Offsets 10 up to 25 of retained-0"):
        rows(wanted, how)


def test_damage_is_named_and_not_read(server: KorvetServer, tmp_path: Path) -> None:
    create(server, "damaged")
    produce(server, "damaged", [b"%d" % n for n in range(30)], settings={"batch.num.messages": "5"})
    snapshot = seal(server, "damaged", tmp_path, 3)
    wanted, how = planned(server, "damaged", tmp_path)
    path = paths(tmp_path, snapshot)[1]
    whole = path.read_bytes()
    path.write_bytes(whole[:70] + bytes([whole[70] ^ 1]) + whole[71:])
    with pytest.raises(PipelineError, match=rf"{path.name}: the bytes 0 to .* were changed .*; without tier\.url"):
        rows(wanted, how)
    (tmp_path / snapshot.folder / f"{1:020d}.snapshot").write_bytes(b"korvet partition 1")
    with pytest.raises(PipelineError, match=r"The tier cannot be read: .*; without tier\.url"):
        planned(server, "damaged", tmp_path)


def test_store_that_is_not_there_is_one_sentence(server: KorvetServer, tmp_path: Path) -> None:
    create(server, "away")
    produce(server, "away", [b"1"])
    for url, reason in ((tmp_path / "a", "not the directory of a tier"), ("nonesuch://b/c", "nonesuch://b/c: ")):
        with pytest.raises(TierUnreachable, match=f"The tier cannot be read: .*{reason}.*credentials"):
            KorvetReader(batch_options(options(server, "away", tier__url=str(url)))).partitions()
    assert not (tmp_path / "a").exists()


def test_broker_serves_offsets_whose_records_are_others_than_the_sealed_ones(
    server: KorvetServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As after Redis came back without its last writes, and after a topic was created anew."""
    create(server, "parted")
    produce(server, "parted", [b"%d" % n for n in range(30)], settings={"batch.num.messages": "5"})
    snapshot = seal(server, "parted", tmp_path, 3)
    wanted, _ = planned(server, "parted", tmp_path)
    assert [one.end for one in wanted] == [30]
    *first, last = snapshot.members
    beyond = replace(snapshot, tier_end=40, members=[*first, last._replace(next_offset=40)])
    anyio.run(publish, tmp_path, beyond, 2)
    wanted, how = planned(server, "parted", tmp_path)
    assert [(one.end, one.sealed is not None) for one in wanted] == [(20, True), (30, False)]
    assert "parted-0 has another history than its segments from 30 on" in caplog.text
    assert offsets(wanted, how) == list(range(30))
    delete(server, "parted")
    create(server, "parted")
    produce(server, "parted", [b"new"])
    wanted, _ = planned(server, "parted", tmp_path)
    assert wanted == [OffsetRange("parted", 0, 0, 1)]
    assert f"{tmp_path} has no segments of parted in the namespace default" in caplog.text


def test_batches_that_only_the_client_judges_are_the_brokers(server: KorvetServer, tmp_path: Path) -> None:
    create(server, "odd")
    for batch in (batch_of(b"0", b"1"), undecodable(5), batch_of(b"7"), misplaced(0, 3, 1), batch_of(b"11")):
        store(server.bootstrap, "odd", batch)
    seal(server, "odd", tmp_path, 1)
    wanted, how = planned(server, "odd", tmp_path)
    with pytest.raises(Unreadable, match="offset 2 on cannot be read"):
        rows(wanted, how)
    lenient = [row for one in wanted for part in read_range(one, how, skip_unreadable=True) for row in part.to_pylist()]
    plain = batch_options(options(server, "odd"))
    whole = OffsetRange("odd", 0, 0, wanted[-1].end)
    assert lenient == [row for part in read_range(whole, plain, skip_unreadable=True) for row in part.to_pylist()]
    assert [row["offset"] for row in lenient[:3]] == [0, 1, 7]


def test_repeated_batch_of_a_stream_has_the_same_ranges_whatever_was_sealed(
    server: KorvetServer, tmp_path: Path
) -> None:
    create(server, "streams")
    produce(server, "streams", [b"%d" % n for n in range(30)], settings={"batch.num.messages": "5"})
    how = stream_options(options(server, "streams", minPartitions="2", tier__url=str(tmp_path)))
    Directory(tmp_path)
    before, after = KorvetStreamReader(how), KorvetStreamReader(how)
    start, end = {"streams": {"0": 3}}, {"streams": {"0": 29}}
    plain = before.partitions(start, end)
    seal(server, "streams", tmp_path, 5, left=1)
    sealed = after.partitions(start, end)
    assert [replace(one, sealed=None) for one in sealed] == plain and all(one.sealed for one in sealed)
    # The last offsets are not sealed.
    assert offsets(sealed, how) == list(range(3, 29))
    # A snapshot counts as new for a while.
    assert before.partitions(start, end) == plain
    assert len(pickle.loads(pickle.dumps(after)).partitions(start, end)) == 2
    for one in (before, after):
        one.stop()


def test_topic_in_a_bucket_of_which_redis_has_only_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with running_object_store(tmp_path) as store:
        for name, value in store.environment.items():
            monkeypatch.setenv(name, value)
        url = f"s3://{store.bucket}/prefix"
        often = {"log.retention.check.interval.ms": "1000"}
        with running_broker(tier=url, namespace="acme", broker=often) as server:
            poll_until(lambda: tiered(server, "cold"), "the tier")
            large = random.Random(1).randbytes(5_000)
            for at in range(20):
                transact(server, "cold", [large] * 60, commit=at % 3 > 0)
            local_start = leave_to_the_tier(server, "cold", 0.8)
            acme = {"tier__namespace": "acme"}

            def is_sealed_to_local_start() -> bool:
                first = planned(server, "cold", url, **acme)[0][0]
                return first.sealed is not None and first.end >= local_start

            poll_until(is_sealed_to_local_start, "the snapshot")
            for isolation in ("read_uncommitted", "read_committed"):
                more = {"kafka__isolation__level": isolation}
                wanted, how = planned(server, "cold", url, **more, **acme)
                assert [one.sealed is not None for one in wanted] == [True, False]
                plain = batch_options(options(server, "cold", **more))
                assert rows(wanted, how) == rows(KorvetReader(plain).partitions(), plain)


def tiered(server: KorvetServer, topic: str) -> bool:
    """Create a topic in the tier; false if the broker has not yet tried that out."""
    try:
        create(server, topic, 1, {"remote.storage.enable": "true", "segment.bytes": str(1 << 20)})
    except PipelineError:
        return False
    return True


def test_stream_outlives_a_store_that_has_no_newer_snapshot_for_it(
    server: KorvetServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    create(server, "outlives")
    produce(server, "outlives", [b"%d" % n for n in range(30)], settings={"batch.num.messages": "5"})
    root = tmp_path / "tier"
    seal(server, "outlives", root, 3, left=1)
    monkeypatch.setattr(cluster, "_FRESH_S", 0.0)
    stream = KorvetStreamReader(stream_options(options(server, "outlives", tier__url=str(root))))
    start, end = {"outlives": {"0": 25}}, {"outlives": {"0": 30}}
    assert [one.sealed for one in stream.partitions(start, end)] == [None]
    monkeypatch.setattr(tier, "open_objects", lambda *_, **__: Away())
    monkeypatch.setattr(tier, "_ATTEMPTS", 1)
    assert [one.sealed for one in stream.partitions(start, end)] == [None]
    assert "away: no newer snapshot is read" in caplog.text
    stream.stop()
    other = KorvetStreamReader(stream_options(options(server, "outlives", tier__url=str(root))))
    with pytest.raises(TierUnreachable):
        other.partitions(start, end)
    other.stop()


class Away(Objects):
    """A store that does not answer."""

    def __init__(self) -> None:
        super().__init__(MemoryStore(), "away")

    async def read(self, path: str, start: int, end: int) -> memoryview:
        raise TierAway("away")


def member(first: int, after: int, size_bytes: int) -> Member:
    return Member("segment", first, after, size_bytes, 1, 0, 0, 0, 0, str(first))


def test_tasks_get_about_as_many_bytes_of_segments_each() -> None:
    half = TASK_BYTES // 2
    members = (member(0, 10, half), member(10, 30, half), member(30, 90, 3 * TASK_BYTES), member(90, 95, 1))
    sealed = Sealed(2, 95, "f", members)
    found = by_segments(OffsetRange("t", 0, 0, 120), sealed)
    assert [(one.start, one.end) for one in found] == [
        (0, 2), (2, 30), (30, 50), (50, 70), (70, 90), (90, 95), (95, 120),
    ]  # fmt: skip
    held = [None if one.sealed is None else [each.first_offset for each in one.sealed.members] for one in found]
    assert held == [None, [0, 10], [30], [30], [30], [90], None]
    assert by_segments(OffsetRange("t", 0, 95, 99), sealed) == [OffsetRange("t", 0, 95, 99)]
    assert by_segments(OffsetRange("t", 0, 0, 1), None) == [OffsetRange("t", 0, 0, 1)]


def test_queries_without_a_tier_do_not_load_its_library() -> None:
    code = "import sys, korvet.pipeline.source, korvet.pipeline.archive; sys.exit('obstore' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=120).returncode == 0


@pytest.mark.scene
def test_spark_reads_and_archives_a_sealed_topic_as_any_other(
    spark: SparkSession, server: KorvetServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(server, "spark-sealed", 1)
    root = tmp_path / "tier"
    seal(server, "spark-sealed", root, 5, left=1, shelved=2)
    plain = options(server, "spark-sealed", kafka__isolation__level="read_committed")
    whole, found = (
        spark.read.format("korvet").options(**each).load() for each in (plain, {**plain, "tier.url": str(root)})
    )
    assert found.schema == whole.schema
    expected, count = hashes(whole), whole.count()
    assert hashes(found) == expected
    scene = Scene(spark, server.bootstrap, "spark-sealed", tmp_path)
    before = settled(server, 0)
    built = []
    for _ in range(2):
        # The second time the tables are built anew, because somebody removed them.
        shutil.rmtree(Path(scene.lake.raw("spark-sealed")).parent, ignore_errors=True)
        how: dict[str, Any] = {
            "table": "latest",
            "schemas": {"spark-sealed": '{"properties": {"n": {"type": "integer"}}}'},
        }
        result = scene.archive(tier=str(root), **how).topics["spark-sealed"]
        assert result.error is None and result.rows == count
        tables = {name: spark.read.format("delta").load(scene.lake.table("spark-sealed", name)) for name in TABLES}
        assert hashes(tables["raw"].select(*whole.columns)) == expected
        built.append({name: sorted(map(str, rows.drop(ARCHIVED).collect())) for name, rows in tables.items()})
    assert built[0] == built[1] and all(built[0].values())
    # The last batch is in no segment.
    assert settled(server, before) - before < 1_000
    nowhere = tmp_path / "nowhere"
    produce(server, "spark-sealed", [b"new"])
    monkeypatch.setattr(tries, "MOST", 1)
    assert f"{nowhere} is not the directory of a tier" in scene.archive_error(tier=str(nowhere))
