"""A rolling upgrade: a newer version replaces front-ends and library one by one under load, and no client notices."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

import korvet
from korvet.store.keys import Namespace
from tests.api.raw import created, unique
from tests.server.load import Load, read_all
from tests.support.broker import ROOT, KorvetServer
from tests.support.haproxy import HAProxy, running_haproxy
from tests.support.redis import Server, free_port, running_server
from tests.support.waiting import until

WITHIN_S = 120.0
PARTITIONS = 3
NEWER = "99.0.0"
TOO_OLD = f"holds version {NEWER} of korvet's library, and this is korvet {korvet.__version__}. An older korvet cannot"


@pytest.fixture(scope="module")
def newer() -> Iterator[Path]:
    """A copy of the code whose package and library have a higher version, and another name for a function."""
    with tempfile.TemporaryDirectory(prefix="kv") as name:
        root = Path(name)
        for part in ("korvet", "lua"):
            shutil.copytree(ROOT / part, root / part, ignore=shutil.ignore_patterns("__pycache__"))
        for path in (root / "korvet" / "__init__.py", root / "lua" / "0-core/0-library.lua"):
            text = path.read_text()
            assert text.count(korvet.__version__) == 1
            path.write_text(text.replace(korvet.__version__, NEWER))
        for file, name, renamed in (
            ("lua/2-log/append.lua", "'log_append'", "'log_add', was = { 'log_append', '0.7' }"),
            ("korvet/store/log/appending/append.py", '"korvet_log_append"', '"korvet_log_add"'),
        ):
            text = (root / file).read_text()
            assert text.count(name) == 1
            (root / file).write_text(text.replace(name, renamed))
        yield root


@pytest.fixture
def redis() -> Iterator[Server]:
    with running_server("valkey") as server:
        yield server


class Fleet:
    """Three front-ends of this version behind HAProxy, and the steps of an upgrade."""

    def __init__(self, stack: ExitStack, redis: Server) -> None:
        self._stack = stack
        self.redis = redis
        ports = [free_port() for _ in range(3)]
        self.balancer: HAProxy = stack.enter_context(running_haproxy(ports))
        self.front_ends = [self.make(port, ROOT) for port in ports]
        for front_end in self.front_ends:
            front_end.start()
        self.balancer.wait_until_up()

    def make(self, port: int, root: Path) -> KorvetServer:
        directory = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="kv")))
        server = KorvetServer(
            directory,
            redis_url=self.redis.url,
            port=port,
            advertised=self.balancer.address,
            proxy_protocol=True,
            # A member that joins after this time makes a second generation.
            broker={"group.initial.rebalance.delay.ms": "10000"},
            root=root,
        )
        self._stack.callback(server.kill)
        return server

    def replace(self, number: int, root: Path) -> None:
        """Stop a front-end as an operator does, and start one with other code instead."""
        old = self.front_ends[number]
        assert old.stop() == 0
        self.front_ends[number] = self.make(old.port, root).start()
        self.balancer.wait_until_up()

    def library_version(self) -> str:
        with self.redis.client() as client:
            version: Any = client.fcall_ro("korvet_version", 0)
            return str(version.decode())

    def generation(self, group: str) -> int:
        with self.redis.client() as client:
            found: Any = client.hget(Namespace().group(group).group, "generation")
            return int(found)


@contextmanager
def fleet_under_load(redis: Server) -> Iterator[tuple[Fleet, Load]]:
    """A fleet under a load, which must have noticed nothing at the end."""
    with ExitStack() as stack:
        fleet = Fleet(stack, redis)
        topic, group = created(fleet.balancer.port, partitions=PARTITIONS), unique("g")
        with Load(fleet.balancer.bootstrap, topic, group, partitions=PARTITIONS, members=3) as load:
            load.wait_until_settled()
            before = fleet.generation(group)
            yield fleet, load
            load.wait_for(20)
            assert fleet.generation(group) == before
            assert [(one.assignments, one.revocations) for one in load.members] == [(1, 0)] * 3
            load.finish()
        assert load.all_errors == []
        assert read_all(fleet.balancer.bootstrap, topic, PARTITIONS) == sorted(load.acknowledged)


def refusal(redis: Server) -> str:
    """The error of a front-end of this version that refuses to start."""
    with tempfile.TemporaryDirectory(prefix="kv") as name:
        settings = KorvetServer(Path(name), redis_url=redis.url).settings()
        ended = subprocess.run(
            [sys.executable, "-m", "korvet.server", settings.to_json()],
            cwd=ROOT, capture_output=True, text=True, timeout=WITHIN_S, check=False,
        )  # fmt: skip
    assert (ended.returncode, ended.stdout) == (1, "")
    return ended.stderr


def test_front_ends_first(redis: Server, newer: Path) -> None:
    with fleet_under_load(redis) as (fleet, load):
        assert fleet.library_version() == korvet.__version__
        for number in range(3):
            fleet.replace(number, newer)
            assert f"korvet {NEWER} ready" in fleet.front_ends[number].ready_line
            assert fleet.library_version() == NEWER
            load.wait_for(20)
            if number == 0:
                assert TOO_OLD in refusal(redis)
                until(
                    lambda: all("upgrade this korvet soon" in one.log for one in fleet.front_ends[1:]),
                    "those of this version say that they are the older ones",
                )


def test_library_first(redis: Server, newer: Path) -> None:
    with fleet_under_load(redis) as (fleet, load):
        command = [sys.executable, "-m", "korvet.cli", "functions", "load", "--redis", redis.url]
        subprocess.run(command, cwd=newer, check=True, timeout=WITHIN_S, capture_output=True)
        assert fleet.library_version() == NEWER
        load.wait_for(20)
        assert TOO_OLD in refusal(redis)
        for number in range(3):
            fleet.replace(number, newer)
            load.wait_for(20)
        assert fleet.library_version() == NEWER


def test_flushed_functions_are_loaded_again_in_the_newer_version(redis: Server, newer: Path) -> None:
    with fleet_under_load(redis) as (fleet, load):
        fleet.replace(0, newer)
        older = subprocess.run(
            ["cat", *sorted(map(str, (ROOT / "lua").glob("*/*.lua")))], capture_output=True, check=True
        )
        with redis.client() as client:
            for _ in range(3):
                client.function_flush()
                load.wait_for(20)
            # A front-end of the older version may be the first to load its library again.
            client.function_load(older.stdout.decode(), replace=True)
        load.wait_for(20)
        until(lambda: fleet.library_version() == NEWER, "the newer front-end has put its own there")
        load.wait_for(20)
        assert fleet.library_version() == NEWER
