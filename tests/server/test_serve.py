"""The broker's processes: its start, its embedded server, its workers, and a Redis that is away."""

from __future__ import annotations

import os
import signal
import socket
import stat
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from korvet.server.ground.settings import ListenerSettings, ServeSettings
from korvet.server.processes import parent_death_signal
from korvet.server.processes.append_only_file import DIRECTORY, note_size
from tests.support.broker import KorvetServer, is_alive, running_broker
from tests.support.redis import free_port, running_server
from tests.support.waiting import until
from tests.support.wire import request

WITHIN_S = 60.0
API_VERSIONS = request(18, 0, 42)
ANYWHERE = (ListenerSettings(port=0),)


@pytest.fixture
def directory() -> Iterator[Path]:
    # A unix socket's path has about a hundred characters at most, so names are short.
    with tempfile.TemporaryDirectory(prefix="kv") as name:
        yield Path(name)


def ask(server: KorvetServer, data: bytes) -> bytes:
    """The body of the answer to one request, on a connection of its own."""
    with socket.create_connection(("127.0.0.1", server.port), WITHIN_S) as client:
        client.settimeout(WITHIN_S)
        client.sendall(data)
        size, _ = struct.unpack(">ii", client.recv(8, socket.MSG_WAITALL))
        return client.recv(size - 4, socket.MSG_WAITALL)


def creation(letter: bytes) -> bytes:
    body = b"\x00\x00\x00\x01\x00\x01" + letter + struct.pack(">ihiiib", 1, 1, 0, 0, 10_000, 0)
    return request(19, 2, 44, body=body)


def create_topic(server: KorvetServer, letter: bytes) -> int:
    """The error code of creating a topic with a one-letter name; -1 if the connection was closed instead."""
    try:
        return int.from_bytes(ask(server, creation(letter))[11:13], "big", signed=True)
    except (OSError, struct.error):
        return -1


def test_restart_keeps_port_and_data(directory: Path) -> None:
    with running_broker(directory=directory) as server:
        assert create_topic(server, b"a") == 0
        port = server.port
        assert server.stop() == 0
        server.start()
        assert server.port == port
        assert create_topic(server, b"a") == 36
        server.restart(crash=True)
        assert create_topic(server, b"a") == 36


def test_nobody_else_may_read_the_embedded_servers_data_new_or_there_already(directory: Path) -> None:
    """The data holds keys of passwords, which another user of the machine could try offline."""
    outside = directory / "outside"
    outside.write_text("")
    outside.chmod(0o644)
    with running_broker(directory=directory) as server:
        data = server.data_dir
        for _ in range(2):
            found = [data, *data.rglob("*")]
            assert [path for path in found if stat.S_IMODE(path.lstat().st_mode) & 0o077 and path.is_file()] == []
            assert {stat.S_IMODE(path.stat().st_mode) for path in found if path.is_dir()} == {0o700}
            note_size(data / DIRECTORY)
            server.stop()
            # As an earlier korvet left it, and with a link of somebody else's.
            for path in filter(Path.exists, found):
                path.chmod(0o755 if path.is_dir() else 0o644)
            (data / "temp-link").symlink_to(outside)
            server.start()
            assert stat.S_IMODE(outside.stat().st_mode) == 0o644
            (data / "temp-link").unlink()
        server.stop()
        data.chmod(0o755)
        (data / "of-somebody-else").write_text("")
        server.start()
        assert stat.S_IMODE(data.stat().st_mode) == 0o755
        assert stat.S_IMODE((data / "appendonlydir").stat().st_mode) == 0o700


def test_embedded_server_ends_last_and_with_a_killed_parent(directory: Path) -> None:
    with running_broker(directory=directory) as server:
        pid = server.embedded_pid
        assert server.stop() == 0
        assert not is_alive(pid)
        server.start()
        pid = server.embedded_pid
        server.kill()
        assert not is_alive(pid)


def test_embedded_server_that_dies_is_restarted_with_its_data(directory: Path) -> None:
    with running_broker(directory=directory) as server:
        assert create_topic(server, b"a") == 0
        with server.redis() as client:
            client.execute_command("WAITAOF", 1, 0, 5000)
        server.kill_embedded()
        until(lambda: create_topic(server, b"a") == 36, "the topic is there again")
        assert "Traceback" not in server.log


def test_second_serve_on_the_same_data_is_refused_in_one_line(directory: Path) -> None:
    with running_broker(directory=directory) as server:
        settings = ServeSettings(listeners=ANYWHERE, data_dir=server.data_dir)
        second = subprocess.run(
            [sys.executable, "-m", "korvet.server", settings.to_json()],
            capture_output=True, text=True, timeout=WITHIN_S, check=False,
        )  # fmt: skip
        assert second.returncode == 1
        assert second.stdout == ""
        assert second.stderr == (
            f"korvet: data directory {server.data_dir} is in use by another korvet serve (pid {server.pid})\n"
        )
        assert create_topic(server, b"a") == 0


def test_embedded_server_that_cannot_start_is_one_line(directory: Path) -> None:
    data = directory / "data"
    (data / "appendonlydir").mkdir(parents=True)
    (data / "appendonlydir" / "appendonly.aof.manifest").write_text("nonsense\n")
    ended = subprocess.run(
        [sys.executable, "-m", "korvet.server", ServeSettings(listeners=ANYWHERE, data_dir=data).to_json()],
        capture_output=True, text=True, timeout=WITHIN_S, check=False,
    )  # fmt: skip
    assert ended.returncode == 1
    assert ended.stderr.startswith("korvet: the embedded Valkey did not start: ")
    assert ended.stderr.count("\n") == 1


def test_start_waits_for_a_redis_that_is_down(directory: Path) -> None:
    with running_server("valkey") as redis:
        redis.kill()
        server = KorvetServer(directory, redis_url=redis.url)
        try:
            server.start(wait=False)
            until(lambda: "redis is not available" in server.log, "it says so")
            redis.start()
            server.wait_until_ready()
            assert server.ready_line.endswith(f"at {redis.url})")
            assert create_topic(server, b"a") == 0
        finally:
            server.kill()


def test_start_waits_for_a_redis_that_does_not_serve_yet(directory: Path) -> None:
    with running_server("valkey", tcp=True) as primary, running_server("valkey", tcp=True) as redis:
        with redis.client() as client:
            client.replicaof("127.0.0.1", primary.port)
        server = KorvetServer(directory, redis_url=redis.url)
        try:
            server.start(wait=False)
            until(lambda: "waiting for it" in server.log, "it says so")
            assert "is a replica and takes no writes" in server.log
            with redis.client() as client:
                client.replicaof("NO", "ONE")
            server.wait_until_ready()
            assert create_topic(server, b"a") == 0
        finally:
            server.kill()


def test_sigterm_ends_a_start_that_waits_for_redis(directory: Path) -> None:
    server = KorvetServer(directory, redis_url="redis://127.0.0.1:1")
    try:
        server.start(wait=False)
        until(lambda: "redis is not available" in server.log, "it says so")
        began = time.monotonic()
        server.stop()
        assert time.monotonic() - began < 10
    finally:
        server.kill()


def test_redis_lost_in_flight_fails_requests_and_comes_back(directory: Path) -> None:
    (directory / "redis").mkdir()
    with (
        running_server("valkey", directory=directory / "redis", options={"appendonly": "yes"}) as redis,
        running_broker(redis_url=redis.url, directory=directory) as server,
    ):
        assert create_topic(server, b"a") == 0
        redis.kill()
        until(lambda: create_topic(server, b"b") not in (0, 36), "a request fails")
        assert ask(server, API_VERSIONS)[:2] == b"\x00\x00"
        redis.start()
        until(lambda: create_topic(server, b"b") in (0, 36), "requests are served again")
        assert "Traceback" not in server.log


def test_requests_wait_for_a_frozen_redis_and_are_answered_later(directory: Path) -> None:
    with running_server("valkey") as redis, running_broker(redis_url=redis.url, directory=directory) as server:
        with redis.paused(), socket.create_connection(("127.0.0.1", server.port), WITHIN_S) as client:
            client.sendall(creation(b"a"))
            assert ask(server, API_VERSIONS)[:2] == b"\x00\x00"
        until(lambda: create_topic(server, b"a") == 36, "what was asked has happened")


def test_workers_share_a_port_and_are_restarted_and_drained(directory: Path) -> None:
    with running_broker(workers=2, directory=directory) as server:
        workers = children(server.pid) - {server.embedded_pid}
        assert len(workers) == 2
        assert create_topic(server, b"a") == 0
        victim = min(workers)
        os.kill(victim, signal.SIGKILL)
        until(lambda: len(children(server.pid)) == 3 and victim not in children(server.pid), "another worker is there")
        for _ in range(20):
            assert ask(server, API_VERSIONS)[:2] == b"\x00\x00"
        everybody = children(server.pid)
        assert server.stop() == 0
        assert not any(is_alive(pid) for pid in everybody)


def test_broker_goes_on_if_its_output_pipes_are_closed(directory: Path) -> None:
    with running_broker(workers=2, directory=directory) as server:
        assert server.process is not None and server.process.stdout is not None
        server.process.stdout.close()
        victim = min(children(server.pid) - {server.embedded_pid})
        os.kill(victim, signal.SIGKILL)
        until(lambda: server.log.count("a worker died") == 1, "the death is noticed")
        with server.redis() as client:
            until(lambda: appenders(client) == 2, "another one is there")
        for _ in range(20):
            assert ask(server, API_VERSIONS)[:2] == b"\x00\x00"
        assert server.stop() == 0


def test_broker_goes_on_if_its_log_cannot_be_written(directory: Path) -> None:
    read_end, write_end = os.pipe()
    settings = ServeSettings(listeners=ANYWHERE, data_dir=directory / "data")
    process = subprocess.Popen(
        [sys.executable, "-m", "korvet.server", settings.to_json()], stdout=write_end, stderr=write_end
    )
    os.close(write_end)
    try:
        with open(read_end, "rb", buffering=0) as output:
            port = int(output.readline().split()[4].rpartition(b":")[2])
        for _ in range(2):
            with socket.create_connection(("127.0.0.1", port), WITHIN_S) as client:
                client.sendall(b"\xff\xff\xff\xff")
                assert client.recv(1) == b""
        (embedded,) = children(process.pid)
        os.kill(embedded, signal.SIGKILL)
        until(lambda: children(process.pid) not in (set(), {embedded}), "another embedded server is there")
        process.send_signal(signal.SIGTERM)
        assert process.wait(WITHIN_S) == 0
    finally:
        process.kill()
        process.wait()


def test_ctrl_c_at_any_moment_leaves_no_process_and_no_traceback(directory: Path) -> None:
    server = KorvetServer(directory, workers=2)
    for worker_count in (0, 2):
        server.start(wait=False)
        try:
            until(lambda: len(children(server.pid)) == 1 + worker_count, "it is as far as that")  # noqa: B023
            everybody = children(server.pid)
            assert server.process is not None
            os.killpg(server.pid, signal.SIGINT)
            assert server.process.wait(WITHIN_S) == 0
            until(lambda: not any(is_alive(pid) for pid in everybody), "all are gone")  # noqa: B023
            assert "Traceback" not in server.log
        finally:
            server.kill()


def test_workers_leave_when_their_supervisor_is_killed(directory: Path) -> None:
    with running_broker(workers=2, directory=directory) as server:
        everybody = children(server.pid)
        assert len(everybody) == 3
        server.kill()
        until(lambda: not any(is_alive(pid) for pid in everybody), "all are gone")
        server.start()


def test_taken_port_is_one_line_with_workers_too(directory: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for workers in (1, 2):
            settings = ServeSettings(
                listeners=(ListenerSettings(port=port),), data_dir=directory / "data", workers=workers
            )
            ended = subprocess.run(
                [sys.executable, "-m", "korvet.server", settings.to_json()],
                capture_output=True, text=True, timeout=WITHIN_S, check=False,
            )  # fmt: skip
            assert ended.returncode == 1
            assert ended.stderr == f"korvet: cannot listen on 127.0.0.1:{port}: address already in use\n"


def test_listeners_that_exclude_each_other_are_refused_in_one_line(directory: Path) -> None:
    port = free_port()
    doors = (ListenerSettings(host="0.0.0.0", port=port), ListenerSettings(port=port, namespace="b"))
    settings = ServeSettings(listeners=doors, data_dir=directory / "data")
    ended = subprocess.run(
        [sys.executable, "-m", "korvet.server", settings.to_json()],
        capture_output=True, text=True, timeout=WITHIN_S, check=False,
    )  # fmt: skip
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr.endswith(f"korvet: cannot listen on 127.0.0.1:{port}: address already in use\n")
    assert "Traceback" not in ended.stderr


def test_idle_and_frame_settings_have_kafkas_names(directory: Path) -> None:
    limits = {"connections.max.idle.ms": "1000", "socket.request.max.bytes": "1000"}
    with running_broker(directory=directory, broker=limits) as server:
        with socket.create_connection(("127.0.0.1", server.port), WITHIN_S) as client:
            assert client.recv(1) == b""
        with socket.create_connection(("127.0.0.1", server.port), WITHIN_S) as client:
            client.sendall(struct.pack(">i", 1001))
            assert client.recv(1) == b""
        assert "frame of 1001 bytes; up to 1000 are taken" in server.log


def test_parked_request_is_answered_at_drain(directory: Path) -> None:
    with running_broker(directory=directory) as server:
        assert create_topic(server, b"a") == 0
        fetch = struct.pack(">iiiib", -1, 60_000, 1, 1 << 20, 0) + b"\x00\x00\x00\x01\x00\x01a"
        fetch += struct.pack(">iiqi", 1, 0, 0, 1 << 20)
        with socket.create_connection(("127.0.0.1", server.port), WITHIN_S) as client:
            client.sendall(request(1, 4, 9, body=fetch))
            client.settimeout(0.3)
            with pytest.raises(TimeoutError):
                client.recv(1)
            client.settimeout(WITHIN_S)
            assert server.stop() == 0
            _, correlation_id = struct.unpack(">ii", client.recv(8, socket.MSG_WAITALL))
            assert correlation_id == 9


def test_program_that_gets_a_parent_death_signal_ends_with_its_parent() -> None:
    script = (
        "import os, subprocess, sys\n"
        "command = [sys.executable, sys.argv[1], str(os.getpid()), '/bin/sleep', '600']\n"
        "child = subprocess.Popen(command, stdout=subprocess.DEVNULL)\n"
        "print(child.pid, flush=True)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    command = [sys.executable, "-c", script, parent_death_signal.__file__]
    parent = subprocess.run(command, capture_output=True, text=True, check=False)
    pid = int(parent.stdout)
    until(lambda: not is_alive(pid), "the program ended")


def appenders(client: redis.Redis) -> int:
    return sum(known["name"] == "korvet-append" for known in client.client_list())


def children(pid: int) -> set[int]:
    """Living children of a process."""
    found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return {int(child) for child in found if is_alive(int(child))}
