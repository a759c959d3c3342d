"""Looks at records: pages that go on lose none and show none twice, whatever the records' sizes."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from dataclasses import replace
from urllib.parse import parse_qsl, urlsplit

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from starlette.exceptions import HTTPException

from korvet.cli.console import form_fields, records
from korvet.cli.console.records import NEWER, OLDER, Found, Wanted, find_records
from korvet.cli.console.sources import Sources
from korvet.cli.console.views import PAGES
from korvet.cli.ground.cluster import Cluster
from korvet.cli.kafka.client import Client
from tests.support.broker import KorvetServer


@pytest.fixture(scope="module")
def client(broker: KorvetServer) -> Iterator[Client]:
    with Cluster(bootstrap=broker.bootstrap).client() as client:
        yield client


def topic_of(broker: KorvetServer, values: list[bytes], partitions: int = 1, **settings: str | int) -> str:
    """A topic whose records go to its partitions in turn, with timestamps a millisecond apart."""
    name = f"search-{secrets.token_hex(4)}"
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic(name, partitions, 1)])[name].result(60)
    producer = Producer({"bootstrap.servers": broker.bootstrap, **settings})
    began_ms = int(time.time() * 1000) - len(values)
    for number, value in enumerate(values):
        at_ms = began_ms + number
        producer.produce(name, value, partition=number % partitions, timestamp=at_ms, headers=[("number", str(number))])
    assert producer.flush(60) == 0
    return name


def walk(client: Client, wanted: Wanted) -> Iterator[Found]:
    """The page and those that go on from it, in its direction."""
    while True:
        yield (found := find_records(client, wanted))
        toward, edges = (OLDER, found.older) if wanted.is_back else (NEWER, found.newer)
        if edges:
            wanted = replace(wanted, toward=toward, edges=edges)
        elif found.others:
            wanted = replace(wanted, first=wanted.first + records.MOST_PARTITIONS, toward="", edges={})
        else:
            return


def texts(pages: Iterator[Found]) -> list[str]:
    return [record.value.text for page in pages for record in page.records]


def test_search_from_the_end_reads_on_to_the_start(broker: KorvetServer, client: Client) -> None:
    name = topic_of(broker, [b"NEEDLE", *(b"%d" % number for number in range(10_000))])
    page = find_records(client, Wanted(topic=name, text="NEEDLE"))
    assert ([record.offset for record in page.records], page.read, page.left) == ([0], 10_001, 0)
    assert (page.older, page.newer) == ({}, {})


@pytest.mark.parametrize("start", ["end", "start"])
def test_pages_show_each_record_once_in_the_order_of_time(broker: KorvetServer, client: Client, start: str) -> None:
    values = [b"%d" % number for number in range(1_000)]
    name = topic_of(broker, values, partitions=3, **{"linger.ms": 5})
    in_order = [value.decode() for value in (reversed(values) if start == "end" else values)]
    assert texts(walk(client, Wanted(topic=name, start=start, count=70))) == in_order
    fives = [text for text in in_order if "5" in text]
    assert sorted(texts(walk(client, Wanted(topic=name, start=start, count=20, text="5")))) == sorted(fives)


def test_page_leads_back_to_the_one_before(broker: KorvetServer, client: Client) -> None:
    name = topic_of(broker, [b"%d" % number for number in range(300)], partitions=2)
    first = find_records(client, Wanted(topic=name, count=100))
    assert first.newer == {}
    second = find_records(client, Wanted(topic=name, count=100, toward=OLDER, edges=first.older))
    back = find_records(client, Wanted(topic=name, count=100, toward=NEWER, edges=second.newer))
    assert back.records == first.records[::-1]
    assert back.newer == {}
    assert back.older == second.newer


@pytest.mark.parametrize("start", ["end", "start"])
def test_large_records_are_searched_in_small_steps(
    broker: KorvetServer, client: Client, monkeypatch: pytest.MonkeyPatch, start: str
) -> None:
    monkeypatch.setattr(records, "MOST_BYTES", 1 << 20)
    sent = [b"%d:" % number + bytes(200_000) for number in range(40)]
    name = topic_of(broker, sent, partitions=2)
    pages = list(walk(client, Wanted(topic=name, start=start, text=":")))
    assert len(pages) > 3
    numbers = [int(text.partition(":")[0]) for text in texts(iter(pages))]
    assert sorted(numbers) == list(range(40))
    assert sum(page.read for page in pages) == 40


def test_look_without_any_time_gets_on_nevertheless(broker: KorvetServer, client: Client) -> None:
    name = topic_of(broker, [b"a", b"b"])
    ticks = iter(range(0, 10_000, 100))
    page = find_records(client, Wanted(topic=name), clock=lambda: float(next(ticks)))
    assert 0 < len(page.records) <= 2


def test_topic_of_many_partitions_is_searched_in_turns(
    broker: KorvetServer, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "MOST_PARTITIONS", 2)
    name = topic_of(broker, [b"%d" % number for number in range(10)], partitions=5)
    pages = list(walk(client, Wanted(topic=name)))
    assert [page.others for page in pages] == [3, 1, 0]
    assert texts(iter(pages)) == ["6", "5", "1", "0", "8", "7", "3", "2", "9", "4"]


@pytest.mark.parametrize("text", ["number", "29"])
def test_search_looks_into_headers(broker: KorvetServer, client: Client, text: str) -> None:
    name = topic_of(broker, [b"value"] * 30)
    assert find_records(client, Wanted(topic=name, text=text)).records[0].offset == 29


def test_search_that_found_too_little_goes_on_by_a_link(
    broker: KorvetServer, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "MOST_READ", 500)
    name = topic_of(broker, [b"NEEDLE", *(b"%d" % number for number in range(3_500))])
    view = next(view for path, _, view in PAGES if path == "/records")
    fields, reads = {"name": name, "q": "NEEDLE"}, []
    for _ in range(10):
        shown = view(client, fields, Sources())
        reads.append(shown["read"])
        if not shown["next_look"]:
            break
        fields = {**fields, **fields_of(shown["next_look"])}
    assert reads[-1] == 3_501
    assert reads == sorted(set(reads))
    assert (shown["had"], shown["onward"]) == (1, "")


def fields_of(link: str) -> dict[str, str]:
    return dict(parse_qsl(urlsplit(link).query))


@pytest.mark.parametrize("value", ["up,0:1", "older,0", "older,0:x", "newer,0:1,", "older" + ",0:1" * 101, "x" * 5000])
def test_edge_that_no_page_has_is_refused(value: str) -> None:
    with pytest.raises(HTTPException):
        form_fields.edges({"from": value}, "from", 100)
