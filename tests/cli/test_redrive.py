"""``korvet topics redrive`` on korvet and on Apache Kafka."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import confluent_kafka
import pytest
from kio.schema.end_txn.v3.request import EndTxnRequest

from korvet.cli.kafka.connection import Connection
from korvet.cli.kafka.errors import ConnectionLost
from korvet.wire.dead_letters import headers
from tests.cli.conftest import Korvet
from tests.kafka.waiting import poll_until

Headers = Sequence[tuple[str, bytes | None]]
Letter = tuple[bytes | None, bytes | None, Headers]
AT_MS = 1_700_000_000_000


class Letters:
    """A topic of three partitions, and a topic of its dead letters."""

    def __init__(self, korvet: Korvet, bootstrap: str, name: str) -> None:
        self.korvet, self.topic, self.dead = korvet, name, f"dlq.{name}"
        self._producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap})
        korvet("topics", "create", self.topic, "--partitions", "3")
        korvet("topics", "create", self.dead, "--partitions", "2")

    def add(self, *letters: Letter, partition: int = 0) -> None:
        self.produce(self.dead, *letters, partition=partition)

    def produce(self, topic: str, *records: Letter, partition: int = 0) -> None:
        for number, (key, value, added) in enumerate(records):
            self._producer.produce(
                topic, key=key, value=value, headers=[*added], partition=partition, timestamp=AT_MS + number
            )
        assert self._producer.flush(30) == 0

    def failed(self, partition: int, offset: int, topic: str = "") -> Headers:
        """The headers of a copy of a record."""
        found = headers(topic or self.topic, partition, offset, "g", 5, b"limit")
        return [(name, text.encode()) for name, text in found.items()]

    def redrive(self, *flags: str, code: int = 0) -> tuple[dict[tuple[str, int], int], str]:
        """The number of letters that partitions got, and what is said on stderr."""
        ended, out, err = self.korvet("topics", "redrive", self.dead, "--json", *flags)
        assert ended == code, err
        sent = json.loads(out)["partitions"] if out else []
        return {(one["topic"], one["partition"]): one["records"] for one in sent}, err

    def read(self, topic: str = "") -> dict[int, list[Any]]:
        """What the partitions of a topic have. Kafka ends a transaction after its answer."""
        lines = list[str]()

        def has_ended() -> bool:
            code, out, err = self.korvet("topics", "consume", topic or self.topic, "--json")
            lines[:] = out.splitlines()
            return code == 0 and "open transaction" not in err

        poll_until(has_ended, "the end of transactions")
        found: dict[int, list[Any]] = {}
        for one in map(json.loads, lines):
            added = [tuple(pair) for pair in one["headers"]]
            found.setdefault(one["partition"], []).append((one["timestamp"] - AT_MS, one["key"], one["value"], added))
        return found


@pytest.fixture
def letters(korvet: Korvet, bootstrap: str, name: str) -> Letters:
    return Letters(korvet, bootstrap, name)


def test_dead_letters_go_back_as_they_were_and_only_once(letters: Letters) -> None:
    former = letters.failed(0, 7, "deeper")
    letters.add(
        (b"k", b"v", [("h", b"1"), ("h", None), *letters.failed(2, 5)]),
        (b"gone", None, letters.failed(2, 6)),
        (None, b"copy of a copy", [*former, *letters.failed(0, 7)]),
    )
    assert letters.redrive("--dry-run")[0] == {(letters.topic, 0): 1, (letters.topic, 2): 2}
    assert letters.read() == {}
    letters.add((b"k", b"of another partition", letters.failed(1, 0)), partition=1)
    assert letters.redrive()[0] == {(letters.topic, 0): 1, (letters.topic, 1): 1, (letters.topic, 2): 2}
    expected = {
        0: [(2, None, "copy of a copy", [(name, text and text.decode()) for name, text in former])],
        1: [(0, "k", "of another partition", [])],
        2: [(0, "k", "v", [("h", "1"), ("h", None)]), (1, "gone", None, [])],
    }
    assert letters.read() == expected
    said = f"group korvet-redrive-{letters.dead} has sent back all dead letters of topic {letters.dead}\n"
    assert letters.korvet("topics", "redrive", letters.dead) == (0, "", said)
    assert letters.read() == expected


def test_some_dead_letters_go_to_another_topic(letters: Letters, korvet: Korvet) -> None:
    other = f"{letters.topic}-other"
    korvet("topics", "create", other, "--partitions", "2")
    letters.add(*((b"%d" % number, b"v", letters.failed(number % 3, number)) for number in range(5)))
    for sent in ({(other, 0): 2, (other, 1): 1}, {(other, 0): 1, (other, 1): 1}):
        assert letters.redrive("--to", other, "-n", "3")[0] == sent
    assert {number: [key for _, key, *_ in those] for number, those in letters.read(other).items()} == {
        0: ["0", "2", "3"],
        1: ["1", "4"],
    }
    assert letters.redrive("--group", f"{letters.topic}-again", "-n", "1")[0] == {(letters.topic, 0): 1}
    assert (
        "create it, or name another with --to"
        in letters.redrive("--group", f"{letters.topic}-more", "--to", f"{letters.topic}-none", code=1)[1]
    )
    assert "name another one" in letters.redrive("--to", letters.dead, code=2)[1]


def test_dead_letter_without_a_copy_gets_its_record_from_its_topic(letters: Letters) -> None:
    letters.produce(letters.topic, (b"a", b"0", []), (b"b", b"1", [("h", b"x")]), (b"c", b"2", []))
    missing = f"{letters.topic}-none"
    letters.add(
        (None, None, letters.failed(0, 1)),
        (None, None, letters.failed(0, 9)),
        (None, None, letters.failed(0, 1, missing)),
        (None, b"no letter", []),
        (None, b"of no topic", letters.failed(0, 1, "no/topic")),
    )
    found, err = letters.redrive(code=1)
    assert found == {(letters.topic, 0): 1}
    assert err.splitlines() == [
        f"{letters.dead}-0@1 is left out: it has no copy of its record {letters.topic}-0@9, which is gone",
        f"{letters.dead}-0@2 is left out: it has no copy of its record {missing}-0@1, which is gone",
        *(f"{letters.dead}-0@{offset} is left out: it has no headers of a dead letter" for offset in (3, 4)),
    ]
    assert letters.read()[0][3:] == [(0, "b", "1", [("h", "x")])]
    assert letters.redrive()[0] == {}


@pytest.mark.parametrize("is_served", [True, False])
def test_dead_letters_go_back_once_if_the_end_of_a_transaction_is_unknown(
    letters: Letters, monkeypatch: pytest.MonkeyPatch, is_served: bool
) -> None:
    letters.add(*((None, b"%d" % number, letters.failed(0, number)) for number in range(3)))
    ask: Callable[..., Any] = Connection.ask

    def losing(connection: Connection, message: Any, answer: Any = None) -> Any:
        if message.schema is EndTxnRequest and message.fields["committed"]:
            if is_served:
                ask(connection, message, answer)
            connection.close()
            raise ConnectionLost("lost")
        return ask(connection, message, answer)

    with monkeypatch.context() as patch:
        patch.setattr(Connection, "ask", losing)
        assert "start the command again" in letters.redrive(code=1)[1]
    assert letters.redrive()[0] == ({} if is_served else {(letters.topic, 0): 3})
    assert [value for _, _, value, _ in letters.read()[0]] == ["0", "1", "2"]
