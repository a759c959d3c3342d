"""Test servers run in containers if Docker answers, with the same settings as on this machine."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from tests.support.containers import IMAGES, docker_answers
from tests.support.docker_daemon import Daemon, running_daemon
from tests.support.redis import PROGRAMS, Kind, ServerUnavailable, running_server
from tests.support.tools import find_tool

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere containers have a network of their own")


@pytest.fixture
def directory() -> Iterator[Path]:
    """A directory whose name is short enough for unix sockets."""
    with tempfile.TemporaryDirectory(prefix="kv") as name:
        yield Path(name)


@pytest.fixture
def docker(directory: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Daemon]:
    """A Docker that answers."""
    monkeypatch.setenv("DOCKER_HOST", f"unix://{directory}/docker")
    monkeypatch.setenv("TESTCONTAINERS_RYUK_DISABLED", "true")
    with running_daemon(directory / "docker") as daemon:
        docker_answers.cache_clear()
        yield daemon
    docker_answers.cache_clear()


def test_docker_at_an_address_without_a_listener_does_not_answer(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{directory}/nobody")
    assert not docker_answers.__wrapped__()


@pytest.mark.parametrize("kind", ["valkey", "redis", "redis8"])
def test_container_runs_the_server_on_the_hosts_network_as_this_user(
    docker: Daemon, directory: Path, kind: Kind
) -> None:
    if kind != "valkey":
        find_tool(PROGRAMS[kind])
    with running_server(kind, tcp=True, directory=directory, options={"appendonly": "yes"}) as server:
        (asked,) = docker.asked
        assert (asked["Image"], asked["Cmd"][0]) == (IMAGES[kind], PROGRAMS[kind])
        assert (asked["User"], asked["WorkingDir"]) == (f"{os.getuid()}:{os.getgid()}", str(directory))
        assert asked["HostConfig"]["NetworkMode"] == "host"
        assert asked["HostConfig"]["Binds"] == [f"{directory}:{directory}:rw"]
        with server.client() as near, redis.Redis.from_url(server.tcp_url) as far:
            assert near.config_get("appendonly") == {"appendonly": "yes"}
            assert near.info("server")["run_id"] == far.info("server")["run_id"]
    assert docker.removed == set(docker.processes)


@pytest.mark.parametrize("crash", [False, True])
def test_ended_container_is_removed_and_the_next_has_its_data(docker: Daemon, directory: Path, crash: bool) -> None:
    with running_server(
        "valkey", directory=directory, options={"appendonly": "yes", "appendfsync": "always"}
    ) as server:
        with server.client() as client:
            client.set("key", "value")
        server.restart(crash=crash)
        (first, _second) = docker.processes
        assert docker.removed == {first}
        assert docker.processes[first].returncode == (-signal.SIGKILL if crash else 0)
        with server.client() as client:
            assert client.get("key") == b"value"


def test_paused_container_answers_only_after_the_pause(docker: Daemon, directory: Path) -> None:
    with running_server("valkey", directory=directory) as server, server.client(socket_timeout=0.2) as client:
        with server.paused(), pytest.raises(redis.TimeoutError):
            client.ping()
        assert client.ping()


def test_server_that_ends_at_its_start_is_unavailable(docker: Daemon, directory: Path) -> None:
    with (
        pytest.raises(ServerUnavailable, match="did not become ready"),
        running_server("valkey", directory=directory, options={"no-such-option": "1"}),
    ):
        pass
    assert docker.removed == set(docker.processes)
