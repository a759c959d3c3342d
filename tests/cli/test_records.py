"""``korvet topics produce`` and ``consume`` on korvet and on Apache Kafka."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest

from korvet.cli import run
from korvet.cli.kafka import offsets
from korvet.cli.kafka.client import Client
from korvet.cli.kafka.consume import Cursor, Gone, Reader
from korvet.cli.kafka.offsets import TopicPartition
from korvet.cli.kafka.records import CODECS, partition_of
from korvet.cli.records import lines
from korvet.errors import KorvetError
from tests.cli.conftest import Korvet, Produce
from tests.kafka.waiting import poll_until
from tests.support.broker import KorvetServer
from tests.support.times import DAY, HOUR_MS, MIDNIGHT_MS


@pytest.fixture
def shown(korvet: Korvet) -> Callable[..., list[Any]]:
    """The records of a topic as JSON."""

    def shown(topic: str, *flags: str) -> list[Any]:
        code, out, err = korvet("topics", "consume", topic, "--json", *flags)
        assert code == 0, err
        return [json.loads(line) for line in out.splitlines()]

    return shown


def values(records: list[Any]) -> list[Any]:
    return [record["value"] for record in records]


def test_lines_are_stored_and_shown(korvet: Korvet, send: Produce, topic: str) -> None:
    assert korvet("topics", "consume", topic) == (0, "", f"topic {topic} has no records in this range\n")
    assert send(topic, b"hello\n\nw\xc3\xb6rld") == (0, f"produced 3 records to topic {topic}\n", "")
    assert korvet("topics", "consume", topic) == (0, "hello\n\nw\N{LATIN SMALL LETTER O WITH DIAERESIS}rld\n", "")


def test_produce_prints_stored_offsets_as_json(send: Produce, topic: str) -> None:
    send(topic, b"a\n")
    code, out, _ = send(topic, b"b\nc\n", "--json")
    assert (code, json.loads(out)) == (
        0,
        {
            "topic": topic,
            "records": 2,
            "partitions": [{"partition": 0, "records": 2, "first_offset": 1, "last_offset": 2}],
        },
    )


@pytest.mark.parametrize("codec", list(CODECS))
def test_records_of_each_codec_are_exchanged_with_other_clients(
    send: Produce, shown: Callable[..., list[Any]], bootstrap: str, topic: str, codec: str
) -> None:
    send(topic, b"k1:" + b"v" * 2000 + b"\nk2:w\n", "-K", ":", "-z", codec, "-H", "a=1", "-H", "b")
    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": topic, "check.crcs": True})
    consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
    read = [message for message in consumer.consume(2, 30) if message.error() is None]
    consumer.close()
    assert [(message.key(), message.value(), message.headers()) for message in read] == [
        (b"k1", b"v" * 2000, [("a", b"1"), ("b", None)]),
        (b"k2", b"w", [("a", b"1"), ("b", None)]),
    ]
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "compression.type": codec})
    producer.produce(topic, key=b"k3", value=b"x" * 2000, headers=[("c", b"\xff"), ("d", None)], timestamp=MIDNIGHT_MS)
    assert producer.flush(30) == 0
    (record,) = shown(topic, "--offset", "2")
    assert (record["key"], record["value"], record["timestamp"]) == ("k3", "x" * 2000, MIDNIGHT_MS)
    assert record["headers"] == [["c", {"base64": "/w=="}], ["d", None]]


def test_json_of_consume_is_taken_by_produce(
    korvet: Korvet, send: Produce, shown: Callable[..., list[Any]], name: str
) -> None:
    korvet("topics", "create", name, f"{name}-2", "-p", "1")
    told: list[dict[str, Any]] = [
        {"key": None, "value": {"base64": "AP8b"}, "headers": [["h", "1"], ["h", None]], "timestamp": MIDNIGHT_MS},
        {"key": "k", "value": None, "headers": [], "timestamp": MIDNIGHT_MS + 1},
        {"key": "", "value": "two\nlines", "headers": [], "timestamp": MIDNIGHT_MS + 2},
    ]
    assert send(name, b"\n".join(json.dumps(one).encode() for one in told), "--format", "json")[0] == 0
    out = korvet("topics", "consume", name, "--json")[1]
    assert [{key: record[key] for key in told[0]} for record in map(json.loads, out.splitlines())] == told
    assert send(f"{name}-2", out.encode(), "--format", "json")[0] == 0
    assert [{**record, "topic": name} for record in shown(f"{name}-2")] == shown(name)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"{", "Expecting property name"),
        (b"[1]", "want an object with only headers, key, offset, partition, timestamp, topic, value"),
        (b'{"vlaue": "x"}', "want an object with only"),
        (b'{"value": 1}', "value: want a text, null or"),
        (b'{"value": {"base64": "!"}}', "value: "),
        (b'{"headers": [["a"]]}', "headers: want [[NAME, VALUE], …]"),
        (b'{"timestamp": "soon"}', "timestamp is no number of milliseconds"),
        (b"\xff", "'utf-8' codec can't decode"),
    ],
)
def test_line_that_is_no_record_is_named(send: Produce, topic: str, line: bytes, reason: str) -> None:
    code, _, err = send(topic, b'{"value": "good"}\n' + line + b"\n", "--format", "json")
    assert (code, err.startswith(f"korvet: line 2 is no record as JSON: {reason}")) == (1, True), err
    assert err.endswith("; 0 records are stored\n")


@pytest.mark.parametrize("delimiter", [b"\n", b"ab", b"abc"])
@pytest.mark.parametrize("read_bytes", [1, 2, 3, 7, 100])
def test_lines_are_the_same_however_they_arrive(
    delimiter: bytes, read_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines, "READ_BYTES", read_bytes)
    for data in (
        b"",
        b"x",
        b"one" + delimiter + b"two",
        delimiter * 3 + b"a" + delimiter,
        b"aab" + delimiter + b"abab",
    ):
        (tmp_path / "data").write_bytes(data)
        with open(tmp_path / "data", "rb") as file:
            found = [line for some in lines.read_lines(file.fileno(), delimiter) for line in some]
        expected = data.split(delimiter)
        assert found == (expected if expected[-1] else expected[:-1])


def test_line_that_does_not_end_is_not_kept_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "MOST_BYTES", 1000)
    monkeypatch.setattr(lines, "READ_BYTES", 100)
    with (
        open("/dev/zero", "rb") as file,
        pytest.raises(KorvetError, match="a record of more than 1000 bytes; is --del"),
    ):
        list(lines.read_lines(file.fileno(), b"\n"))


def test_line_without_a_key_is_named(send: Produce, topic: str) -> None:
    code, _, err = send(topic, b"a:1\nb\n", "-K", ":")
    assert (code, err) == (1, "korvet: line 2 has no key: there is no ':' in it; 0 records are stored\n")


def test_empty_texts_may_stand_for_null(send: Produce, shown: Callable[..., list[Any]], topic: str) -> None:
    send(topic, b"a\tb\x00c\t\x00\td\x00", "-K", r"\t", "-D", r"\x00", "--null")
    assert [(record["key"], record["value"]) for record in shown(topic)] == [("a", "b"), ("c", None), (None, "d")]


def test_records_are_chosen_by_partition_offset_time_and_number(
    korvet: Korvet, produce: Callable[..., None], send: Produce, shown: Callable[..., list[Any]], name: str
) -> None:
    korvet("topics", "create", name, "--partitions", "2")
    produce(name, 0, [MIDNIGHT_MS + hour * HOUR_MS for hour in range(5)])
    send(name, b"x\n", "--partition", "1")

    def offsets(*flags: str) -> list[int]:
        return [record["offset"] for record in shown(name, "--partition", "0", *flags)]

    assert offsets() == [0, 1, 2, 3, 4]
    assert offsets("--offset", "3") == offsets("-o", "-2") == [3, 4]
    assert offsets("-o", "99") == offsets("-o", "latest") == []
    assert offsets("-o", "-99", "-n", "2") == [0, 1]
    assert offsets("--from-time", f"{DAY}T03:00:00") == [3, 4]
    assert offsets("--to-time", f"{DAY}T03:00:00") == [0, 1, 2]
    assert offsets("--from-time", f"{DAY}T00:30", "--to-time", f"{DAY}T03:00:00+01:00") == [1]
    assert sorted((record["partition"], record["offset"]) for record in shown(name)) == [
        *((0, at) for at in range(5)),
        (1, 0),
    ]


def test_keys_choose_partitions_as_in_java(
    korvet: Korvet, send: Produce, shown: Callable[..., list[Any]], name: str
) -> None:
    """UtilsTest.testMurmur2: of these hashes the lowest 31 bits count."""
    hashes = {"21": -973932308, "foobar": -790332482, "a-little-bit-long-string": -985981536, "abc": 479470107}
    assert {key: partition_of(key.encode(), 7) for key in hashes} == {
        key: (hash & 0x7FFFFFFF) % 7 for key, hash in hashes.items()
    }
    korvet("topics", "create", name, "--partitions", "7")
    assert send(name, "".join(f"{key} x\n" for key in hashes).encode(), "-K", " ")[0] == 0
    assert {record["key"]: record["partition"] for record in shown(name)} == {
        key: partition_of(key.encode(), 7) for key in hashes
    }


def test_formats_are_those_of_kcat(korvet: Korvet, bootstrap: str, topic: str) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap})
    producer.produce(topic, key=b"k", value=b"v", headers=[("a", b"1"), ("b", None)], timestamp=MIDNIGHT_MS)
    producer.produce(topic, timestamp=MIDNIGHT_MS)
    assert producer.flush(30) == 0
    template = r"%t-%p@%o %T %k/%K %s/%S %h %%\t\x41\n"
    assert korvet("topics", "consume", topic, "--format", template)[1].splitlines() == [
        f"{topic}-0@0 {MIDNIGHT_MS} k/1 v/1 a=1,b %\tA",
        f"{topic}-0@1 {MIDNIGHT_MS} /-1 /-1  %\tA",
    ]
    assert korvet("topics", "consume", topic, "--format", "full")[1].splitlines() == [
        f"{topic}-0@0 {DAY}T00:00:00.000+00:00 key=k headers=a=1,b v",
        f"{topic}-0@1 {DAY}T00:00:00.000+00:00 null",
    ]


@pytest.mark.parametrize(
    ("template", "reason"), [("%q", "'%q' is no field"), ("a%", "it ends in '%'"), (r"\y", r"\y is")]
)
def test_unknown_format_is_refused(korvet: Korvet, topic: str, template: str, reason: str) -> None:
    code, _, err = korvet("topics", "consume", topic, "--format", template)
    assert (code, err.startswith(f"korvet: invalid value for --format: {reason}")) == (2, True), err


def test_aborted_records_are_shown_only_on_request(
    korvet: Korvet, shown: Callable[..., list[Any]], bootstrap: str, topic: str
) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "transactional.id": topic})
    producer.init_transactions(30)
    for value, end in (("lost", producer.abort_transaction), ("kept", producer.commit_transaction)):
        producer.begin_transaction()
        producer.produce(topic, value=value)
        producer.flush(30)
        end(30)
    # Apache Kafka tells a producer of the end before its markers are in the log.
    poll_until(lambda: values(shown(topic)) == ["kept"], "the committed record is shown")
    assert values(shown(topic, "--isolation", "read_uncommitted")) == ["lost", "kept"]
    producer.begin_transaction()
    producer.produce(topic, value="open")
    producer.flush(30)
    code, out, err = korvet("topics", "consume", topic)
    assert (code, out) == (0, "kept\n")
    assert err == f"{topic}-0@4 is held back by an open transaction; --isolation read_uncommitted shows it\n"
    assert values(shown(topic, "--isolation", "read_uncommitted")) == ["lost", "kept", "open"]
    producer.abort_transaction(30)


def test_batches_that_are_too_large_for_the_topic_are_sent_in_parts(
    korvet: Korvet, send: Produce, shown: Callable[..., list[Any]], name: str
) -> None:
    korvet("topics", "create", name, "-p", "1", "--config", "max.message.bytes=2000")
    assert send(name, b"\n".join(b"%d" % number * 100 for number in range(100)))[0] == 0
    assert values(shown(name)) == [f"{number}" * 100 for number in range(100)]
    code, _, err = send(name, b"small\n" + b"x" * 3000 + b"\n")
    assert (code, err.startswith("korvet: a record of 30")) == (1, True), err
    assert f"korvet topics configure {name} --set max.message.bytes=" in err
    assert err.endswith("; 1 record is stored\n")


def test_topic_that_is_deleted_while_its_offsets_are_looked_up_has_no_records(
    korvet: Korvet, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = offsets.log_offsets

    def deleted(client: Client, partitions: Any, timestamp: int) -> dict[TopicPartition, int]:
        return {} if timestamp == offsets.LATEST else before(client, partitions, timestamp)

    monkeypatch.setattr(offsets, "log_offsets", deleted)
    assert korvet("topics", "consume", topic) == (0, "", f"topic {topic} has no records in this range\n")


def test_reason_of_a_refused_record_is_shown(
    broker: KorvetServer, capsys: pytest.CaptureFixture[str], tmp_path: Path, name: str
) -> None:
    (tmp_path / "records").write_text('{"a": 1}\n{"b": 1}\n')
    schema = 'korvet.value.schema={"required": ["a"]}'
    assert run(["topics", "create", name, "--config", schema, "-b", broker.bootstrap]) == 0
    code = run(["topics", "produce", name, str(tmp_path / "records"), "-b", broker.bootstrap])
    assert (code, "record 1: $: 'a' is a required property" in capsys.readouterr().err) == (1, True)


def test_topic_that_does_not_exist_is_named_with_the_nearest(korvet: Korvet, send: Produce, topic: str) -> None:
    hint = f"korvet: topic '{topic}x' does not exist; did you mean '{topic}'?\n"
    assert korvet("topics", "consume", f"{topic}x") == (1, "", hint)
    assert send(f"{topic}x", b"a\n") == (1, "", hint)
    assert send("§§", b"")[0] == 1
    assert (
        korvet("topics", "consume", topic, "-p", "9")[2]
        == f"korvet: topic '{topic}' has no partition 9; it has 0 to 0\n"
    )


def test_removed_records_are_named(korvet: Korvet, produce: Callable[..., None], bootstrap: str, topic: str) -> None:
    produce(topic, 0, [MIDNIGHT_MS] * 5)
    assert korvet("topics", "trim", topic, "--before", "3", "--execute")[0] == 0
    partition = TopicPartition(topic, 0)
    with Client(bootstrap) as client:
        reader = Reader(client, [Cursor(partition=partition, position=1, stop=5)], committed=True)
        items: list[Any] = []
        while not reader.is_done:
            items += [item for _, item in reader.read()]
    assert items[0] == Gone(1, 2)
    assert [item.offset for item in items[1:]] == [3, 4]
