"""``korvet tier``."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest

from korvet.cli import run
from korvet.tier.objects import Directory
from tests.store.logs import NAMESPACE, front
from tests.store.published import publish, tiered
from tests.store.sealed import seal
from tests.support.redis import Server

TAIL = "--namespace", NAMESPACE.name


@pytest.fixture
def where(redis_server: Server, tmp_path: Path) -> str:
    """A directory with the segments of a topic, whose Redis was emptied."""
    directory = tmp_path / "tier"

    async def fill() -> None:
        async with front(redis_server.url) as one:
            objects = Directory(directory)
            parts = await tiered(one, 2)
            for partition in parts:
                await seal(one, objects, partition, [0, 6, 12])
            await publish(one, objects, *parts)

    with redis_server.client() as client:
        client.flushall()
        anyio.run(fill)
        client.flushall()
    return str(directory)


def shown(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> Any:
    assert run(["tier", *arguments, *TAIL, "--json"]) == code
    return json.loads(capsys.readouterr().out)


def test_tier_is_listed_and_described_without_a_redis(where: str, capsys: pytest.CaptureFixture[str]) -> None:
    (topic,) = shown(capsys, "list", "--tier", where)
    assert (topic["topic"], topic["partitions"], topic["offsets"]) == ("orders", 2, 24)
    found = shown(capsys, "describe", "orders", "--tier", where)
    assert [(one["partition"], one["log_start"], one["tier_end"]) for one in found["partitions"]] == [
        (0, 0, 12), (1, 0, 12),
    ]  # fmt: skip
    assert sum(one["bytes"] for one in found["partitions"]) == topic["bytes"] > 0
    for words in (["list"], ["describe", "orders"], ["verify"]):
        assert run(["tier", *words, "--tier", where, *TAIL]) == 0
        assert f"{topic['bytes'] // 2}" in capsys.readouterr().out or words == ["list"]


def test_verify_ends_with_1_and_names_the_object(where: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert [row["problems"] for row in shown(capsys, "verify", "--tier", where)] == [[], []]
    damaged = sorted(Path(where).rglob("*.segment"))[0]
    damaged.write_bytes(damaged.read_bytes()[:-1])
    assert run(["tier", "verify", "orders", "--tier", where, *TAIL]) == 1
    assert damaged.name in capsys.readouterr().err


def test_recover_shows_first_and_then_does_it(
    where: str, redis_server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    words = "recover", "--tier", where, "--redis", redis_server.url

    def statuses(found: Any) -> Sequence[str]:
        return [one["status"] for one in found["done"]]

    compared = "tier", "verify", "--tier", where, *TAIL, "--redis", redis_server.url
    assert run(compared) == 1
    assert capsys.readouterr().err.count("Redis lacks something") == 3
    assert statuses(shown(capsys, *words, code=1)) == ["create", "create", "enter"]
    with redis_server.client() as client:
        assert client.keys("*") == []
    assert statuses(shown(capsys, *words, "--execute")) == ["create", "create", "enter"]
    assert statuses(shown(capsys, *words, "--execute")) == ["whole", "whole"]
    assert run(compared) == 0
    assert run(["tier", *words, *TAIL, "--dry-run"]) == 0
    assert "consumer groups" in capsys.readouterr().err


def test_recover_leaves_a_tier_alone_that_another_redis_owns(
    where: str, redis_server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    words = "tier", "recover", "--tier", where, "--redis", redis_server.url, *TAIL
    anyio.run(Directory(Path(where)).claim, NAMESPACE.name, "other", "run", None)
    assert run([*words, "--dry-run"]) == 0
    assert "--take-over" in capsys.readouterr().err
    assert run([*words, "--execute"]) == 1
    assert "belongs to the cluster other" in capsys.readouterr().err
    assert run([*words, "--execute", "--take-over"]) == 0
    owner = anyio.run(Directory(Path(where)).owner, NAMESPACE.name)
    assert owner is not None
    assert (owner.cluster_id == "other", owner.generation) == (False, 2)


def test_doctor_names_what_only_the_tier_has_and_recover_restores_it(
    where: str, redis_server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    words = "tier", "recover", "--tier", where, "--redis", redis_server.url, *TAIL, "--execute"
    assert run(words) == 0
    first, second = (NAMESPACE.tier("orders", number) for number in range(2))
    with redis_server.client() as client:
        client.delete(first.tier)
        # Somebody deleted a log that has records above the tier's end.
        client.hset(second.meta, "end", 15)
        client.delete(second.log)

    def found() -> str:
        capsys.readouterr()
        run(["doctor", "--redis", redis_server.url, *TAIL])
        return capsys.readouterr().out

    assert "the list of segments of partition 0 of topic orders is not whole: korvet tier recover" in found()
    assert f"redis-cli DEL '{second.meta}', then korvet tier recover" in found()
    with redis_server.client() as client:
        client.delete(second.meta)
    assert run(words) == 0
    assert "none is damaged" in found()


@pytest.mark.parametrize(
    ("words", "text"),
    [(["list", "--namespace", "other"], "no topics of namespace"), (["describe", "none", *TAIL], "no topic 'none'")],
)
def test_unknown_names_are_one_line(
    where: str, capsys: pytest.CaptureFixture[str], words: Sequence[str], text: str
) -> None:
    assert run(["tier", *words, "--tier", where]) == 1
    assert text in capsys.readouterr().err


def test_command_that_used_a_bucket_leaves_out_the_end_of_the_interpreter(tmp_path: Path) -> None:
    code = "import atexit; from korvet.cli import main; atexit.register(print, 'ended'); main()"
    command = [sys.executable, "-c", code, "tier", "list", "--tier", str(tmp_path)]
    (tmp_path / ".new").mkdir()
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr.count("\n")) == (1, "", 1)


def test_tier_that_is_no_store_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["tier", "list", "--tier", "/dev/null/tier"]) == 1
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("words", [["list"], ["describe", "orders"], ["verify"], ["recover"]])
def test_mistyped_directory_is_not_made(words: Sequence[str], tmp_path: Path) -> None:
    assert run(["tier", *words, "--tier", str(tmp_path / "tire"), *TAIL]) == 1
    assert not (tmp_path / "tire").exists()
