"""``korvet pipeline replay --tier``: sealed batches come into a topic byte for byte, each once."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest
from kio.schema.init_producer_id.v4.request import InitProducerIdRequest

from korvet.cli import run
from korvet.cli.kafka.client import Client
from korvet.cli.kafka.connection import Connection
from korvet.cli.kafka.errors import ConnectionLost
from korvet.cli.kafka.offsets import LATEST, TopicPartition, log_offsets
from korvet.cli.kafka.records import Record, Stored, Unsent, read_records, write_batch
from korvet.cli.kafka.topics import describe_topics
from korvet.cli.kafka.transactional import as_producers
from korvet.cli.replay.copies import Copy, copies, portions
from korvet.cli.replay.sending import Sender
from korvet.errors import KorvetError
from korvet.pipeline.replay.config import Note
from korvet.tier.objects import Directory, TierAway
from korvet.tier.reading import Committed
from korvet.tier.segment import Aborted, batches
from korvet.tier.series import Series
from korvet.tier.snapshot import Snapshot, TieredTopic, Topics
from korvet.tier.survey import survey
from korvet.wire.batch import CONTROL, HEADER, HEADER_BYTES, LOG_APPEND_TIME, TRANSACTIONAL, Batch, refusal
from tests.kafka.test_tier import leave_to_the_tier, new_topic, written
from tests.kafka.test_tier import produce as produce_large
from tests.kafka.waiting import poll_until
from tests.pipeline.sealing import Held, aborted, held, paths, seal
from tests.pipeline.sourcing import create, produce, trim
from tests.pipeline.test_source_tier import fill
from tests.pipeline.written import Written, read_topic
from tests.support.broker import KorvetServer, running_broker
from tests.support.scraping import WITHIN_S


@pytest.fixture(scope="module")
def server() -> Iterator[KorvetServer]:
    with running_broker() as one:
        yield one


def sealed(
    server: KorvetServer, topic: str, root: Path, *, segments: int = 3, partitions: int = 1, **how: int
) -> Sequence[Snapshot]:
    """A tier with the partitions of a topic."""
    found = [seal(server, topic, root, segments, partition=number, **how) for number in range(partitions)]
    topics = Topics(
        cluster_id="c", namespace="default", version=1, topics=[TieredTopic(topic, found[0].topic_id, partitions, {})]
    )

    async def publish() -> None:
        await Series(Directory(root), topics.folder, Topics.decoded).add(0, topics.encoded())

    anyio.run(publish)
    return found


def replay(server: KorvetServer, capsys: pytest.CaptureFixture[str], tier: Path, *words: str, code: int = 0) -> Any:
    """Run the command: its result, or what it says on stderr if it fails."""
    capsys.readouterr()
    given = "--tier", str(tier), "--bootstrap-server", server.bootstrap
    assert run(["pipeline", "replay", *given, *words, "--json"]) == code, capsys.readouterr().err
    shown = capsys.readouterr()
    return json.loads(shown.out) if code in (0, 130) else shown.err


def bodies(log: Held, those: Sequence[Aborted] = ()) -> list[bytes]:
    """The records of all batches that a reader of committed records gets, as they lie there."""
    committed = Committed(those)
    return [data[HEADER_BYTES:] for one, data in log if not one.attributes & CONTROL and committed.has(one)]


def contents(found: Sequence[Written]) -> list[tuple[Any, ...]]:
    return [(one.partition, one.key, one.value, one.headers, one.timestamp_ms) for one in found]


@pytest.mark.parametrize("seed", [0, 2], ids=["times of records", "times of appends"])
def test_replay_copies_committed_batches_byte_for_byte(
    server: KorvetServer, tmp_path: Path, capsys: pytest.CaptureFixture[str], seed: int
) -> None:
    topic, copy = f"copied-{seed}", f"copy-{seed}"
    fill(server, topic, seed)
    (snapshot,) = sealed(server, topic, tmp_path, segments=5, left=3, shelved=2)
    words = "--topic", topic, "--to", copy, "--create"
    found = replay(server, capsys, tmp_path, *words)
    expected = [one for one in read_topic(server.bootstrap, topic) if one.offset < snapshot.tier_end]
    assert (found["records"], found["complete"], found["version"]) == (len(expected), True, None)
    assert contents(read_topic(server.bootstrap, copy)) == contents(expected)
    if seed == 0:
        log = held(server, topic, 0)
        source = [(one, data) for one, data in log if one.base_offset < snapshot.tier_end]
        assert bodies(held(server, copy, 0)) == bodies(source, aborted(log))
    assert replay(server, capsys, tmp_path, *words)["records"] == 0
    assert "give --into-archived" in replay(server, capsys, tmp_path, "--topic", topic, code=1)


def test_replay_copies_the_chosen_range(
    server: KorvetServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    create(server, "ranged", 2)
    for number in range(2):
        for first in range(0, 60, 20):
            values = [b"%d" % (first + at) for at in range(20)]
            produce(server, "ranged", values, partition=number, start_ms=1_700_000_000_000 + first * 1000)
    sealed(server, "ranged", tmp_path, partitions=2)
    asked = 0

    def numbers(*words: str) -> dict[int, list[int]]:
        nonlocal asked
        asked += 1
        to = f"ranged-{asked}"
        replay(server, capsys, tmp_path, "--topic", "ranged", "--to", to, "--create", *words)
        found = read_topic(server.bootstrap, to)
        return {number: [int(one.value or b"") for one in found if one.partition == number] for number in range(2)}

    # Both ends lie within batches.
    assert numbers("--partition", "1", "--from-offset", "5", "--to-offset", "45") == {0: [], 1: [*range(5, 45)]}
    assert numbers("--from-offset", "0:58", "--to-offset", "1:3") == {0: [58, 59], 1: [0, 1, 2]}
    # The record of offset 30 has the second 30 of that minute.
    times = "--from-time", "2023-11-14T22:13:50Z", "--to-time", "2023-11-14T22:13:55Z"
    assert numbers(*times) == {0: [*range(30, 35)], 1: [*range(30, 35)]}
    late = replay(server, capsys, tmp_path, "--topic", "ranged", "--to", "x", "--from-time", "2024-01-01", code=1)
    assert "there is nothing to replay" in late
    # What was deleted since the snapshot stays deleted.
    trim(server, {("ranged", 0): 41, ("ranged", 1): 60})
    assert numbers() == {0: [*range(41, 60)], 1: []}


def test_replay_goes_on_with_what_was_sealed_meanwhile(
    server: KorvetServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    create(server, "growing")
    produce(server, "growing", [b"%d" % at for at in range(50)], settings={"batch.num.messages": "10"})
    sealed(server, "growing", tmp_path / "first")
    words = "--topic", "growing", "--to", "grown", "--create"
    assert replay(server, capsys, tmp_path / "first", *words)["records"] == 50
    produce(server, "growing", [b"%d" % at for at in range(50, 80)], settings={"batch.num.messages": "10"})
    sealed(server, "growing", tmp_path / "second")
    again = replay(server, capsys, tmp_path / "second", *words)
    assert (again["records"], again["total"], again["complete"]) == (30, 80, True)
    assert [int(one.value or b"") for one in read_topic(server.bootstrap, "grown")] == [*range(80)]
    assert "another source, range or topic" in replay(
        server, capsys, tmp_path / "second", *words, "--name", again["name"], "--to-offset", "9", code=1
    )


class Killed(BaseException):
    """Nothing catches this, as nothing catches SIGKILL."""


def test_replay_that_was_killed_between_any_two_requests_goes_on(
    server: KorvetServer, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    create(server, "killed")
    produce(server, "killed", [b"%d" % at for at in range(40)], settings={"batch.num.messages": "10"})
    sealed(server, "killed", tmp_path, segments=2)
    monkeypatch.setattr("korvet.cli.replay.run._THREADS", 1)
    ask, left, has_begun = Connection.ask_all, 0, False

    def dying(connection: Connection, messages: Sequence[Any], answer: Any = None) -> Any:
        nonlocal left, has_begun
        found = ask(connection, messages, answer)
        # Before the first producer begins, nothing is written.
        has_begun = has_begun or messages[0].schema is InitProducerIdRequest
        left -= has_begun
        if left == 0:
            raise Killed
        return found

    monkeypatch.setattr(Connection, "ask_all", dying)
    for at in range(1, 100):
        to, left, has_begun = f"killed-{at}", at, False
        words = "--topic", "killed", "--to", to, "--create"
        try:
            replay(server, capsys, tmp_path, *words)
        except Killed:
            assert replay(server, capsys, tmp_path, *words)["complete"]
        assert [int(one.value or b"") for one in read_topic(server.bootstrap, to)] == [*range(40)], to
        if left > 0:
            return
    raise AssertionError("a replay has more requests than this test kills")


def test_replay_names_its_software_once_before_the_batches_of_a_connection(
    server: KorvetServer, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A front-end that knows it need not open each batch for its greatest timestamp."""
    create(server, "named")
    produce(server, "named", [b"%d" % at for at in range(20)], settings={"batch.num.messages": "10"})
    sealed(server, "named", tmp_path, segments=1)
    sent: dict[Connection, list[Any]] = {}
    ask = Connection.ask_all

    def noting(connection: Connection, messages: Sequence[Any], answer: Any = None) -> Any:
        sent.setdefault(connection, []).extend(messages)
        return ask(connection, messages, answer)

    monkeypatch.setattr(Connection, "ask_all", noting)
    assert replay(server, capsys, tmp_path, "--topic", "named", "--to", "renamed", "--create")["records"] == 20
    names = [[one.schema.__name__ for one in those] for those in sent.values()]
    (writing,) = (those for those in names if "ProduceRequest" in those)
    assert writing.count("ApiVersionsRequest") == 1
    assert writing.index("ApiVersionsRequest") < writing.index("ProduceRequest")


@pytest.mark.parametrize("to", ["korvet", pytest.param("kafka", marks=pytest.mark.all)])
def test_replay_goes_on_if_answers_are_lost(
    server: KorvetServer,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
    to: str,
) -> None:
    source = f"lossy-{to}"
    create(server, source)
    produce(server, source, [b"%d" % at for at in range(200)], settings={"batch.num.messages": "10"})
    sealed(server, source, tmp_path, segments=4)
    target = server if to == "korvet" else request.getfixturevalue("kafka")
    ask, asked, lost = Connection.ask_all, 0, [17, 21, 26, 32, 39, 47]

    def losing(connection: Connection, messages: Sequence[Any], answer: Any = None) -> Any:
        nonlocal asked
        asked += 1
        found = ask(connection, messages, answer)
        if asked in lost:
            connection.close()
            raise ConnectionLost("lost")
        return found

    monkeypatch.setattr(Connection, "ask_all", losing)
    monkeypatch.setattr("korvet.cli.replay.sending._PAUSE_S", 0.0)
    words = "--topic", source, "--to", "lossless", "--create", "--rate", "100000"
    assert replay(target, capsys, tmp_path, *words)["complete"] and asked > lost[-1]
    monkeypatch.undo()
    assert [int(one.value or b"") for one in read_topic(target.bootstrap, "lossless")] == [*range(200)]


def test_second_start_ends_the_first_and_is_not_ended_by_it(server: KorvetServer) -> None:
    create(server, "fenced")
    with Client(server.bootstrap) as client:
        (topic,) = describe_topics(client, ["fenced"])
        assert topic.id is not None
        note = Note(job="job", topic_id=topic.id.hex, records=0)
        first, second = (Sender("fenced", TopicPartition("fenced", 0), note, 0) for _ in range(2))
        stop = threading.Event()

        def copy(at: int) -> list[Copy]:
            return [Copy(write_batch([Unsent(None, b"%d" % at, (), 1_700_000_000_000)], 0), 1, at + 1)]

        first.begin(client)
        first.send(client, copy(0), stop)
        second.begin(client)
        assert (second.position, second.records) == (1, 1)
        for _ in range(2):
            with pytest.raises(KorvetError, match="was started a second time"):
                first.send(client, copy(1), stop)
            # As after a lost connection.
            first._has_begun = False
        second.send(client, copy(0) + copy(1), stop)
    assert [one.value for one in read_topic(server.bootstrap, "fenced")] == [b"0", b"1"]


def test_replay_ends_at_a_record_that_the_topic_refuses_and_goes_on_later(
    server: KorvetServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    create(server, "large")
    produce(server, "large", [b"small", b"x" * 5000], settings={"batch.num.messages": "1"})
    sealed(server, "large", tmp_path, segments=2)
    create(server, "narrow", 1, {"max.message.bytes": "1000"})
    words = "--topic", "large", "--to", "narrow"
    said = replay(server, capsys, tmp_path, *words, code=1)
    assert "narrow-0 from 1 on cannot be written" in said and "raise max.message.bytes of the topic" in said
    assert (
        run(
            ["topics", "configure", "narrow", "--set", "max.message.bytes=9000", "--bootstrap-server", server.bootstrap]
        )
        == 0
    )
    assert replay(server, capsys, tmp_path, *words)["records"] == 1
    assert [len(one.value or b"") for one in read_topic(server.bootstrap, "narrow")] == [5, 5000]


def test_segment_that_is_gone_ends_the_replay_with_what_to_do(
    server: KorvetServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    create(server, "gone")
    produce(server, "gone", [b"%d" % at for at in range(20)], settings={"batch.num.messages": "10"})
    (snapshot,) = sealed(server, "gone", tmp_path, segments=2)
    paths(tmp_path, snapshot)[1].unlink()
    said = replay(server, capsys, tmp_path, "--topic", "gone", "--to", "gone-2", "--create", code=1)
    assert "start the replay again, and it goes on" in said
    assert len(read_topic(server.bootstrap, "gone-2")) == 10


def test_replay_waits_for_a_tier_that_is_away_and_goes_on(
    server: KorvetServer, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    create(server, "away")
    produce(server, "away", [b"%d" % at for at in range(20)], settings={"batch.num.messages": "10"})
    sealed(server, "away", tmp_path, segments=2)
    read, failures = Directory.read, 0

    async def failing(objects: Directory, path: str, start: int, end: int) -> memoryview:
        nonlocal failures
        # As often as a reader asks again by itself, and once more.
        if path.endswith(".segment") and start == 0 and failures < 5:
            failures += 1
            raise TierAway("no answer")
        return await read(objects, path, start, end)

    monkeypatch.setattr(Directory, "read", failing)
    monkeypatch.setattr("korvet.cli.replay.segments._PAUSE_S", 0.0)
    words = "--topic", "away", "--to", "away-2", "--create"
    assert replay(server, capsys, tmp_path, *words)["complete"] and failures == 5
    failures = 0
    monkeypatch.setattr("korvet.cli.replay.segments.PATIENCE_S", -1.0)
    assert "no answer; when that is over, start the replay again" in replay(
        server, capsys, tmp_path, *words, "--name", "again", code=1
    )
    assert [int(one.value or b"") for one in read_topic(server.bootstrap, "away-2")] == [*range(20)]


def raw(offset: int, values: Sequence[bytes], *, codec: int = 0, **fields: int) -> bytes:
    """A batch in a log; the times of its records grow by 1 ms."""
    data = bytearray(
        write_batch([Unsent(b"k", value, [(b"\xff", None)], 7 + at) for at, value in enumerate(values)], codec)
    )
    batch = Batch._make(HEADER.unpack_from(data))._replace(base_offset=offset, leader_epoch=5, **fields)
    HEADER.pack_into(data, 0, *batch)
    return bytes(data)


def offsets_and_values(found: Sequence[Copy]) -> list[tuple[int, list[bytes | None]]]:
    return [
        (
            one.next_offset,
            [
                record.value
                for batch, data in batches(bytes(one.data))
                for record in read_records(Stored(batch, bytes(data)))
                if isinstance(record, Record)
            ],
        )
        for one in found
    ]


def test_only_whole_committed_batches_are_copied_as_they_are() -> None:
    values = [b"a", b"b", b"c"]
    plain, compressed = raw(0, values), raw(3, values, codec=2, producer_id=9, base_sequence=4)
    aborted_one = raw(6, values, attributes=TRANSACTIONAL, producer_id=4)
    marker = raw(9, [b"m"], attributes=TRANSACTIONAL | CONTROL, producer_id=4)
    gaps = raw(10, values, last_offset_delta=5)
    appended = raw(16, values, attributes=LOG_APPEND_TIME, max_timestamp=99)
    log = memoryview(plain + compressed + aborted_one + marker + gaps + appended)
    committed = Committed([Aborted(4, 6, 9, 10)])
    found = list(copies(log, committed, 0, 19))
    assert [one.next_offset for one in found] == [3, 6, 16, 19]
    assert [bytes(one.data) for one in found[:2]] == [plain, compressed]
    assert offsets_and_values(found) == [(3, values), (6, values), (16, values), (19, values)]
    last = [one.timestamp for one in read_records(Stored(next(batches(found[3].data))[0], bytes(found[3].data)))]  # type: ignore[union-attr]
    assert last == [99] * 3
    for one in found:
        sent, _ = as_producers(one.data, 8, 1, 0)
        assert refusal(Batch._make(HEADER.unpack_from(sent)), bytes(sent), 10**6) is None
    assert offsets_and_values(list(copies(log, committed, 1, 5))) == [(3, [b"b", b"c"]), (5, [b"a", b"b"])]
    assert list(copies(log, committed, 6, 10)) == []


def test_batch_that_cannot_be_read_is_copied_whole_and_never_in_part() -> None:
    broken = bytearray(raw(0, [b"a", b"b"], codec=4))
    broken[HEADER_BYTES:] = b"?" * (len(broken) - HEADER_BYTES)
    (whole,) = copies(memoryview(broken), Committed(()), 0, 2)
    assert bytes(whole.data) == bytes(broken)
    with pytest.raises(KorvetError, match=r"offset 0 to 1 cannot be read.*choose offsets that do not cut it"):
        list(copies(memoryview(broken), Committed(()), 1, 2))


def test_sequences_begin_anew_after_the_largest_one() -> None:
    data = raw(3, [b"a", b"b", b"c"], codec=1)
    sent, after = as_producers(data, 70, 2, (1 << 31) - 2)
    batch = Batch._make(HEADER.unpack_from(sent))
    assert (batch.base_offset, batch.leader_epoch, batch.producer_id, batch.producer_epoch) == (0, -1, 70, 2)
    assert (batch.base_sequence, after, batch.attributes) == ((1 << 31) - 2, 1, TRANSACTIONAL | 1)
    assert sent[HEADER_BYTES:] == data[HEADER_BYTES:]


def test_transactions_have_whole_batches_up_to_a_number_of_records_and_of_bytes() -> None:
    those = [Copy(b"x" * records, records, at) for at, records in enumerate([3, 3, 9, 1, 1])]
    for most_records, most_bytes in ((6.0, 99), (99.0, 6)):
        found = portions(those, most_records, most_bytes)
        assert [[one.records for one in some] for some in found] == [[3, 3], [9], [1, 1]]
    assert [len(some) for some in portions(those, math.inf, 99)] == [5]
    assert list(portions([], 6, 6)) == []


def test_command_that_was_killed_copies_what_a_server_sealed(tmp_path: Path) -> None:
    """From a topic of which Redis has forgotten the most; SIGKILL in the middle, twice."""
    tier, count = tmp_path / "tier", 400
    with running_broker(tier=str(tier), broker={"log.retention.check.interval.ms": "1000"}) as one:
        topic = new_topic(one)
        produce_large(one, topic, written(count))
        local_start = leave_to_the_tier(one, topic, 0.5)

        def is_listed() -> bool:
            try:
                found = anyio.run(survey, Directory(tier), "default", topic).partitions.get((topic, 0))
            except KorvetError:
                return False
            return found is not None and found.tier_end >= local_start

        poll_until(is_listed, "a snapshot of all that Redis has forgotten")
        source = read_topic(one.bootstrap, topic)
        words = [sys.executable, "-m", "korvet.cli", "pipeline", "replay", "--tier", str(tier), "--topic", topic]
        words += ["--to", "again", "--create", "--bootstrap-server", one.bootstrap, "--json"]

        def has(records: int) -> bool:
            with Client(one.bootstrap) as client:
                return log_offsets(client, [at], LATEST).get(at, 0) >= records

        at = TopicPartition("again", 0)
        for least in (50, 100):
            with (
                open(tmp_path / "log", "wb") as log,
                subprocess.Popen([*words, "--rate", "100"], stderr=log) as running,
            ):
                poll_until(lambda: running.poll() is not None or has(least), "records of the replay")  # noqa: B023
                assert running.poll() is None, (tmp_path / "log").read_text()
                running.kill()
        finished = subprocess.run(words, check=True, capture_output=True, timeout=WITHIN_S)
        found = json.loads(finished.stdout)
        again = read_topic(one.bootstrap, "again")
    expected = [record for record in source if record.offset < found["total"]]
    assert found["complete"] and 0 < found["records"] < count and len(expected) >= local_start
    assert contents(again) == contents(expected)
