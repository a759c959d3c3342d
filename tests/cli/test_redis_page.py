"""The commands of docs/redis.md run as they are written, one after the other, in one shell."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
import redis

from korvet.store.keys import Namespace
from tests.api.raw import created
from tests.support.broker import KorvetServer, running_broker
from tests.support.tools import find_tool

ROOT = Path(__file__).resolve().parents[2]
WITHIN_S = 60.0
MARK = "== "


def commands() -> tuple[list[str], list[str]]:
    """The page's code, a line each: up to moving an offset, which needs an empty group, and from there on. The second
    part begins with the definitions of the first.
    """
    before, heading, after = (ROOT / "docs" / "redis.md").read_text().partition("## Move an offset")
    assert heading
    first, second = (
        [line.strip() for line in text.splitlines() if line.startswith("    ")] for text in (before, after)
    )
    definitions = [line for line in first if not line.startswith(("redis-cli", "for", "cat", "member="))]
    return first, definitions + second


@pytest.fixture
def broker() -> Iterator[KorvetServer]:
    """A broker without other tests' topics and groups."""
    with running_broker() as server:
        yield server


@pytest.fixture
def orders(broker: KorvetServer) -> None:
    """A topic of records, with one in it."""
    created(broker.port, "orders", korvet_storage="record", korvet_value_format="json")
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap})
    producer.produce("orders", b'{"city": "Bonn", "tons": 7}', b"41", headers=[("source", b"kafka")])
    assert producer.flush(WITHIN_S) == 0


def values_of(broker: KorvetServer, count: int) -> list[tuple[Any, Any, Any]]:
    """Key, value and headers of records of `orders`, as a Kafka client gets them."""
    consumer = confluent_kafka.Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "unused"})
    consumer.assign([confluent_kafka.TopicPartition("orders", 0, 0)])
    found = consumer.consume(count, WITHIN_S)
    consumer.close()
    return [(one.key(), one.value(), one.headers()) for one in found]


@pytest.fixture
def member(broker: KorvetServer) -> Iterator[confluent_kafka.Consumer]:
    """The only member of `readers`, which has read two of three batches of `greetings`."""
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap})
    for value in ("hello", "world", "again"):
        producer.produce("greetings", value, partition=0)
        assert producer.flush(WITHIN_S) == 0
    consumer = confluent_kafka.Consumer({
        "bootstrap.servers": broker.bootstrap, "group.id": "readers", "client.id": "page",
        "auto.offset.reset": "earliest", "enable.auto.commit": False,
    })  # fmt: skip
    consumer.subscribe(["greetings"])
    deadline, read = time.monotonic() + WITHIN_S, 0
    while read < 2 and time.monotonic() < deadline:
        message = consumer.poll(0.1)
        if message is not None:
            read += 1
            consumer.commit(message=message, asynchronous=False)
    assert read == 2
    yield consumer
    consumer.close()


def followed(broker: KorvetServer) -> None:
    """Wait until the Redis group stands at the committed offset."""
    deadline = time.monotonic() + WITHIN_S
    with broker.redis() as client:
        while time.monotonic() < deadline:
            found = {group["name"]: group for group in client.xinfo_groups("korvet:{default:greetings:0}:log")}
            if b"readers" in found and found[b"readers"]["last-delivered-id"] == b"2-0":
                return
            time.sleep(0.05)
    raise AssertionError("the Redis group did not follow")


def replies(broker: KorvetServer, lines: list[str]) -> dict[str, list[str]]:
    """The lines that each command shows, all run in one shell that stops at the first failure."""
    script = [f'redis-cli() {{ {find_tool("redis-cli")} -e -s {broker.embedded_socket} "$@"; }}', "set -euo pipefail"]
    for number, line in enumerate(lines):
        script += [f"echo '{MARK}{number}'", line]
    done = subprocess.run(
        ["bash", "-c", "\n".join(script)], cwd=ROOT, capture_output=True, check=False, timeout=WITHIN_S
    )
    out, err = done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")
    assert done.returncode == 0, f"{out[-2000:]}\n{err}"
    parts = (part.partition("\n") for part in out.split(MARK)[1:])
    return {lines[int(number)]: shown.splitlines() for number, _, shown in parts}


def after(shown: list[str], name: str) -> str:
    """The value after a name."""
    return shown[shown.index(name) + 1]


def ends_with(shown: dict[str, list[str]], end: str) -> list[str]:
    (found,) = [lines for command, lines in shown.items() if command.endswith(end)]
    return found


def test_redis_page_works_as_written(broker: KorvetServer, member: confluent_kafka.Consumer, orders: None) -> None:
    followed(broker)
    first, second = commands()
    shown = replies(broker, first)
    described = ends_with(shown, "korvet_group_describe 5 $(group readers)")
    assert after(described, "id").startswith("cgp_")
    assert (after(described, "state"), after(described, "client_id")) == ("Stable", "page")
    lags = ends_with(shown, "$meta '' greetings:0")
    assert after(lags, "offset") == "2"
    assert after(lags, "lag") == "1"
    stream = ends_with(shown, "XINFO GROUPS 'korvet:{default:greetings:0}:log'")
    assert (after(stream, "last-delivered-id"), after(stream, "lag")) == ("2-0", "1")
    assert "greetings" in ends_with(shown, "HKEYS 'korvet:{default:@catalog}:topics'")
    assert after(ends_with(shown, "cut -d' ' -f1,2)"), "end") == "3"
    assert ends_with(shown, "\"$member\" ''") == ["0"]

    member.close()
    shown = replies(broker, second)
    assert ends_with(shown, '"0 -1 $topic_id "') == ["0"]
    assert ends_with(shown, "korvet_group_fetch 5 $(group readers) greetings:0")[1].startswith("0 -1 ")

    stream = ends_with(shown, "- + COUNT 10")
    fields = [after(stream, name) for name in ("key", "value.city", "value.tons", "header.source")]
    assert fields == ["41", "Bonn", "7", "kafka"]
    assert ends_with(shown, "header.source redis") == ["1"]
    assert ends_with(shown, "$rights") == ["OK"]
    with redis.Redis(unix_socket_path=str(broker.embedded_socket), username="orders", password="secret") as client:
        unit = "korvet:{default:orders:0}"
        client.xadd(f"{unit}:in", {"value": "third"})
        names = [f"{unit}:{name}" for name in ("log", "meta", "producers")]
        found: Any = client.fcall("korvet_record_append", 3, *names, "key", "44")
        assert found in (2, 3, 4)
        with pytest.raises(redis.exceptions.NoPermissionError):
            client.xdel(names[0], "1-0")
        with pytest.raises(redis.exceptions.NoPermissionError):
            client.xlen("korvet:{default:greetings:0}:log")
        security = Namespace().security
        for key, function in ((security.users, "korvet_users_read"), (security.acls, "korvet_acls_read")):
            with pytest.raises(redis.exceptions.NoPermissionError):
                client.hget(key, "")
            # Functions have the rights of their caller.
            with pytest.raises(redis.exceptions.ResponseError, match=r"permission|NOPERM"):
                client.fcall(function, 1, key, "-1")
    read = values_of(broker, 5)
    assert read[:2] == [
        (b"41", b'{"city": "Bonn", "tons": 7}', [("source", b"kafka")]),
        (b"42", b'{"city":"Bonn"}', [("source", b"redis")]),
    ]
    assert sorted(read[2:], key=str) == [(None, b"third", None), (b"43", b'{"city":"Ulm"}', None), (b"44", None, None)]
