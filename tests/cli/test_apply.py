"""``korvet apply``, and the commands of docs/apply.md."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from korvet.apply import Claim, Place
from korvet.cli import run
from korvet.store.library import library_source
from tests.support.redis import Server
from tests.support.tools import find_tool

ROOT = Path(__file__).resolve().parents[2]
WITHIN_S = 60.0
KEYS = "{a}:applied", "{b}:applied"


@pytest.fixture
def client(redis_server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[redis.Redis]:
    """A client of an empty Redis with the library, which is that of the commands."""
    monkeypatch.setenv("KORVET_REDIS", redis_server.url)
    with redis_server.client() as client:
        client.flushall()
        client.function_load(library_source().decode(), replace=True)
        yield client


@pytest.fixture
def places(client: redis.Redis) -> redis.Redis:
    """The first key has places of two applications, one of them in two topics; a command of it failed half-way."""
    for whose in (("billing", "t1", 0), ("billing", "t2", 3), ("search", "t1", 0)):
        client.fcall("korvet_apply_claim", 1, KEYS[0], *whose, "me")
    words = ["3", "INCRBY", "{a}:sum", "1", "3", "RPUSH", "{a}:sum", "x"]
    client.fcall("korvet_apply", 2, KEYS[0], "{a}:sum", "billing", "t1", 0, "me", -1, -1, 4, 17)
    client.fcall("korvet_apply", 2, KEYS[0], "{a}:sum", "billing", "t1", 0, "me", 4, 17, 4, 18, *words)
    return client


def listed(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[Any]:
    assert run(["apply", "list", *arguments, "--json"]) == 0
    return list(json.loads(capsys.readouterr().out))


def test_places_are_listed(places: redis.Redis, capsys: pytest.CaptureFixture[str]) -> None:
    found = listed(capsys, *KEYS)
    assert found[0] == {
        "key": KEYS[0], "application": "billing", "topic_id": "t1", "partition": 0, "leader_epoch": 4, "offset": 17,
        "done": 1, "owner": "me",
    }  # fmt: skip
    assert [(one["application"], one["topic_id"], one["offset"]) for one in found[1:]] == [
        ("billing", "t2", None), ("search", "t1", None),
    ]  # fmt: skip
    assert found[1:] == listed(capsys, KEYS[0], "--topic", "t2") + listed(capsys, KEYS[0], "--application", "search")
    assert listed(capsys, KEYS[1]) == []
    assert run(["apply", "list", KEYS[0]]) == 0
    row = capsys.readouterr().out.splitlines()[1]
    assert row.split() == [KEYS[0], "billing", "t1", "0", "4", "17", "1", "me"]


def test_places_of_an_application_are_forgotten_only_when_they_are_to_be(
    places: redis.Redis, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["apply", "forget", "billing", *KEYS]) == 1
    assert "t2" in capsys.readouterr().out
    assert places.hlen(KEYS[0]) == 3
    assert run(["apply", "forget", "billing", *KEYS, "--topic", "t2", "--execute"]) == 0
    assert places.hkeys(KEYS[0]) == [b"billing t1 0", b"search t1 0"]
    assert run(["apply", "forget", "billing", *KEYS, "--execute"]) == 0
    assert places.hkeys(KEYS[0]) == [b"search t1 0"]
    capsys.readouterr()
    assert run(["apply", "forget", "billing", *KEYS, "--execute"]) == 1
    assert capsys.readouterr().err == ("korvet: application 'billing' has no place there; see: korvet apply list\n")


def test_key_that_is_no_applied_hash_is_named(places: redis.Redis, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["apply", "list", "{a}:sum"]) == 1
    assert "WRONGTYPE" in capsys.readouterr().err
    places.hset(KEYS[1], "a", "b")
    assert run(["apply", "forget", "billing", *KEYS, "--execute"]) == 1
    assert capsys.readouterr().err == f"korvet: {KEYS[1]} is no applied hash: its field 'a' is none\n"
    assert places.hlen(KEYS[0]) == 3


def test_commands_of_the_page_work_as_written(
    client: redis.Redis, redis_server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (ROOT / "docs" / "apply.md").read_text()
    code = "\n".join(line.strip() for line in page.splitlines() if line.startswith("    "))
    shell = [line for line in code.replace("\\\n", " ").splitlines() if not line.startswith("korvet ")]
    script = [f'redis-cli() {{ {find_tool("redis-cli")} -e -s {redis_server.socket_path} "$@"; }}', "set -eu", *shell]
    done = subprocess.run(["bash", "-c", "\n".join(script)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    claimed, applied, stored = re.split(r"\n(?=APPLIED|billing)", done.stdout)
    assert claimed.split() == ["-1", "-1", "0"]
    assert applied.split() == ["APPLIED", "4", "17"]
    assert stored.splitlines()[1].endswith(" 4 17 0 -")
    assert (client.get("{shop}:total"), client.hgetall("{shop}:orders")) == (b"30", {b"1001": b"30"})
    with redis_server.client(username="billing", password="secret") as billing:
        (topic_id,) = re.findall(r"--topic (\S+)", page)
        claim = Claim(billing, "billing", topic_id, 0, ["{shop}:applied"])
        claim.add(Place(4, 19), {"{shop}:applied": [("INCRBY", "{shop}:total", 12)]})
        assert claim.settle(replicas=1, timeout_ms=1) is None
        assert (claim.settle(), client.get("{shop}:total")) == (20, b"42")
    client.acl_deluser("billing")

    (listing, forgetting) = re.findall(r"^    korvet (.*)$", page, re.MULTILINE)
    for words in (listing, forgetting):
        assert run(words.replace("'", "").split()) == 0
    assert "billing" in capsys.readouterr().out
    assert client.hlen("{shop}:applied") == 0
