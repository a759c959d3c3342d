"""Topics with remote.storage.enable as clients see them, over a real front-end that seals into a directory."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from urllib.request import urlopen

import pytest

from korvet.cli import run
from tests.api.data import fetch, offsets, produced, records, wanted
from tests.api.raw import ask, create_topics, created, errors, unique
from tests.api.test_archived_retention import altered
from tests.console.conftest import running_console
from tests.support.broker import KorvetServer, running_broker
from tests.support.waiting import until

OFTEN = {"log.retention.check.interval.ms": "100"}
DISABLED = "Tiered Storage functionality is disabled in the broker. Topic cannot be configured with remote log storage."
EARLIEST, LATEST_TIERED, EARLIEST_LOCAL, LATEST, PENDING = -2, -5, -4, -1, -6


@pytest.fixture(scope="module")
def tiered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KorvetServer]:
    with running_broker(tier=str(tmp_path_factory.mktemp("tier")), broker=OFTEN) as broker:
        yield broker


def new_topic(broker: KorvetServer, **configs: str) -> str:
    """A topic in the tier, as soon as the front-end has one, and has compared the partition with it."""
    pairs = [{"name": name.replace("_", "."), "value": value} for name, value in configs.items()]
    topic = {"name": unique(), "configs": [{"name": "remote.storage.enable", "value": "true"}, *pairs]}
    until(lambda: create_topics(broker.port, topic)[0]["error_code"] == "NONE")
    until(lambda: listed(broker, str(topic["name"]), EARLIEST)[0][0] == "NONE")
    return str(topic["name"])


def listed(broker: KorvetServer, topic: str, *timestamps: int) -> list[tuple[str, int, int]]:
    """Code, offset and leader epoch of each ListOffsets."""
    found = []
    for timestamp in timestamps:
        part = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": timestamp}
        asked = {"replica_id": -1, "isolation_level": 0, "topics": [{"name": topic, "partitions": [part]}]}
        answer = ask(broker.port, "list_offsets", 11, **asked, timeout=10_000)
        (one,) = answer["topics"][0]["partitions"]
        found.append((one["error_code"], one["offset"], one["leader_epoch"]))
    return found


def is_trimmed_to(broker: KorvetServer, topic: str, offset: int) -> bool:
    """True if Redis holds only records from an offset on."""
    return listed(broker, topic, EARLIEST_LOCAL)[0][1] == offset


def test_topic_is_refused_while_the_namespace_has_no_tier(tmp_path: Path) -> None:
    with running_broker() as broker:
        topic = {"name": unique(), "configs": [{"name": "remote.storage.enable", "value": "true"}]}
        assert errors(create_topics(broker.port, topic)) == [(topic["name"], "INVALID_CONFIG", DISABLED)]


def test_front_end_without_the_tier_of_topics_says_so_at_its_start(tiered: KorvetServer) -> None:
    new_topic(tiered)
    with running_broker(redis_url=f"unix://{tiered.embedded_socket}") as broker:
        until(lambda: "topics are in a tier, and this korvet has none" in broker.log)


def test_topic_has_both_parts_and_deletes_from_both(tiered: KorvetServer) -> None:
    name = new_topic(tiered)
    now = int(time.time() * 1000)
    produced(tiered.port, name, *(records(3, timestamp=now + 100 * at) for at in range(10)))
    (before,) = fetch(tiered.port, name, wanted(0))
    assert altered(tiered.port, name, local_retention_ms="0") == ("NONE", None)
    until(lambda: is_trimmed_to(tiered, name, 30))
    assert listed(tiered, name, EARLIEST, LATEST_TIERED, LATEST) == [("NONE", 0, 0), ("NONE", 29, 0), ("NONE", 30, 0)]
    assert listed(tiered, name, PENDING) == [("NONE", 30, 0)]
    assert listed(tiered, name, 0, now + 450, now + 1000) == [("NONE", 0, 0), ("NONE", 15, 0), ("NONE", -1, -1)]
    (cold,) = fetch(tiered.port, name, wanted(0), max_wait=10_000)
    assert (cold["error_code"], offsets(cold), cold["high_watermark"]) == ("NONE", list(range(0, 30, 3)), 30)
    assert cold["records"] == before["records"]
    for offset, start in ((10, 10), (-1, 30)):
        topics = [{"name": name, "partitions": [{"partition_index": 0, "offset": offset}]}]
        (part,) = ask(tiered.port, "delete_records", 2, topics=topics, timeout=5000)["topics"][0]["partitions"]
        assert (part["error_code"], part["low_watermark"]) == ("NONE", start)
        assert fetch(tiered.port, name, wanted(start - 1))[0]["error_code"] == "OFFSET_OUT_OF_RANGE"
        assert listed(tiered, name, EARLIEST, LATEST_TIERED)[0][1] == start
        if start == 10:
            assert offsets(fetch(tiered.port, name, wanted(start), max_wait=10_000)[0])[0] == 9
            assert listed(tiered, name, 0) == [("NONE", 10, 0)]
    produced(tiered.port, name, records(3))
    assert offsets(fetch(tiered.port, name, wanted(30), max_wait=10_000)[0]) == [30]


def test_topic_without_the_tier_has_nothing_there(tiered: KorvetServer) -> None:
    name = created(tiered.port, local_retention_ms="0", retention_ms="-1")
    produced(tiered.port, name, records(3))
    time.sleep(0.5)
    assert listed(tiered, name, EARLIEST_LOCAL, LATEST_TIERED, PENDING) == [("NONE", 0, 0), *[("NONE", -1, -1)] * 2]


def test_bytes_of_the_whole_log_are_kept_while_redis_keeps_fewer(tiered: KorvetServer) -> None:
    name = new_topic(tiered, retention_bytes="3000000", local_retention_bytes="1100000", segment_bytes="1048576")
    for _ in range(8):
        produced(tiered.port, name, *(records(1, 100_000) for _ in range(10)))
    until(lambda: listed(tiered, name, EARLIEST)[0][1] > 40)
    until(lambda: listed(tiered, name, EARLIEST_LOCAL)[0][1] >= 68)
    (start,), (local_start,) = [[one[1] for one in listed(tiered, name, at)] for at in (EARLIEST, EARLIEST_LOCAL)]
    assert 40 < start <= 50
    assert 68 <= local_start <= 70
    assert offsets(fetch(tiered.port, name, wanted(start), max_wait=10_000)[0])[0] == start


def test_descriptions_of_a_topic_show_both_parts(tiered: KorvetServer, capsys: pytest.CaptureFixture[str]) -> None:
    name = new_topic(tiered)
    produced(tiered.port, name, records(), records(), records())
    assert altered(tiered.port, name, local_retention_ms="0") == ("NONE", None)
    until(lambda: is_trimmed_to(tiered, name, 9))
    server = ("--bootstrap-server", tiered.bootstrap)
    capsys.readouterr()
    assert run(["topics", "describe", name, *server]) == 0
    assert [line.split()[3:6] for line in capsys.readouterr().out.splitlines()[1:]] == [
        ["START", "LOCAL", "TIERED"], ["0", "9", "9"],
    ]  # fmt: skip
    with running_console(*server) as url, urlopen(f"{url}/topic?name={name}") as page:
        cells = re.findall(r'<td class="n">(\d+)</td>', page.read().decode())
        assert cells[:4] == ["0", "9", "9", "9"]


def test_group_is_reset_to_a_time_in_the_tier(tiered: KorvetServer, capsys: pytest.CaptureFixture[str]) -> None:
    name, server = new_topic(tiered), ("--bootstrap-server", tiered.bootstrap)
    began = int(time.time()) - 60
    produced(tiered.port, name, *(records(3, timestamp=1000 * (began + at)) for at in range(5)))
    assert altered(tiered.port, name, local_retention_ms="0") == ("NONE", None)
    until(lambda: is_trimmed_to(tiered, name, 15))
    time_there = datetime.fromtimestamp(began + 2, UTC).isoformat()
    for goal, offset in (["--to-datetime", time_there], 6), (["--to-earliest"], 0):
        assert run(["groups", "reset-offsets", "readers", "--topic", name, *goal, "--execute", *server]) == 0
        capsys.readouterr()
        assert run(["groups", "describe", "readers", "--json", *server]) == 0
        (group,) = json.loads(capsys.readouterr().out)
        (row,) = group["partitions"]
        assert (row["current_offset"], row["lag"]) == (offset, 15 - offset)


def test_topic_that_is_created_again_begins_at_0(tiered: KorvetServer) -> None:
    name = new_topic(tiered)
    produced(tiered.port, name, records(), records())
    assert altered(tiered.port, name, local_retention_ms="0") == ("NONE", None)
    until(lambda: is_trimmed_to(tiered, name, 6))
    topics = [{"name": name, "topic_id": None}]
    (deleted,) = ask(tiered.port, "delete_topics", 6, topics=topics, timeout=5000)["responses"]
    assert deleted["error_code"] == "NONE"
    pairs = [{"name": "remote.storage.enable", "value": "true"}]
    assert errors(create_topics(tiered.port, {"name": name, "configs": pairs})) == [(name, "NONE", None)]
    until(lambda: listed(tiered, name, EARLIEST)[0][0] == "NONE")
    assert [one[1] for one in listed(tiered, name, EARLIEST, EARLIEST_LOCAL, LATEST_TIERED, LATEST)] == [0, 0, -1, 0]
    produced(tiered.port, name, records())
    assert offsets(fetch(tiered.port, name, wanted(0), max_wait=10_000)[0]) == [0]
