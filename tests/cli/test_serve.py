"""``korvet serve`` as a process: the sources of its settings, its messages, its end."""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from korvet.cli import run
from korvet.cli.kafka.client import Client
from korvet.cli.kafka.topics import create_topic
from korvet.cli.serve import make_settings, parse_address
from korvet.errors import ConfigError
from korvet.server.ground.settings import ListenerSettings, ServeSettings
from korvet.settings.file import ConfigFile
from tests.kafka.waiting import poll_until
from tests.support.broker import UNINSTALLED
from tests.support.redis import Server

ROOT = Path(__file__).resolve().parents[2]
KORVET = [sys.executable, "-m", "korvet.cli", "serve"]


@pytest.fixture
def directory() -> Iterator[Path]:
    """A directory with a short name, because the path of a unix socket has about a hundred characters at most."""
    with tempfile.TemporaryDirectory(prefix="kv") as path:
        yield Path(path)


@contextmanager
def serving(directory: Path, *arguments: str, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """A broker in ``directory``, killed at the end if it still runs."""
    process = subprocess.Popen(
        [*KORVET, *arguments],
        cwd=directory,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (ROOT, UNINSTALLED))), **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def ready_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def port_of(line: str) -> int:
    found = re.match(r"korvet \S+ ready on \S+:(\d+) ", line)
    assert found is not None, line
    return int(found[1])


def test_metrics_are_an_address_by_a_flag_or_the_file() -> None:
    assert make_settings({}, ConfigFile()).metrics is None
    file = ConfigFile(serve={"metrics": "127.0.0.1:9464"})
    assert make_settings({}, file).metrics == ("127.0.0.1", 9464)
    settings = make_settings({"metrics": "[::1]:0"}, file)
    assert settings.metrics == ("::1", 0)
    assert ServeSettings.from_json(settings.to_json()) == settings
    with pytest.raises(ConfigError, match="--metrics: '9464' is not HOST:PORT"):
        make_settings({"metrics": "9464"}, file)


def test_flags_count_more_than_the_file_and_the_file_more_than_defaults() -> None:
    file = ConfigFile(
        serve={"listen": "[::1]:9093", "workers": 3, "log-level": "error"}, broker={"num.partitions": "2"}
    )
    flags = {"listen": None, "advertised": "there:9094", "workers": 5, "data_dir": "here", "redis": None}
    assert make_settings(flags, file) == ServeSettings(
        listeners=(ListenerSettings(host="::1", port=9093, advertised_host="there", advertised_port=9094),),
        workers=5,
        data_dir=Path("here"),
        log_level="error",
        broker={"num.partitions": "2"},
    )


def test_flags_describe_the_only_listener_and_the_file_describes_several() -> None:
    file = ConfigFile(listeners=({"listen": ":1"}, {"listen": ":2", "namespace": "b", "proxy-protocol": True}))
    assert make_settings({"namespace": None}, file).listeners == (
        ListenerSettings(host="0.0.0.0", port=1),
        ListenerSettings(host="0.0.0.0", port=2, namespace="b", proxy_protocol=True),
    )
    for flag, name in (("listen", ":3"), ("advertised", "there:3"), ("namespace", "c"), ("proxy_protocol", True)):
        with pytest.raises(ConfigError, match="listener"):
            make_settings({flag: name}, file)
    (several,) = make_settings({"advertised": "[::1]:3-8"}, ConfigFile()).listeners
    assert several == ListenerSettings(advertised_host="::1", advertised_port=3, advertised_last_port=8)
    for text in ("there:3-", "there:8-3", "there:3-23", "there:65535-65536", "there:0-3", "there-b:x"):
        with pytest.raises(ConfigError, match="--advertised"):
            make_settings({"advertised": text}, ConfigFile())
    with pytest.raises(ConfigError, match="'there-b' is not HOST:PORT"):
        make_settings({"advertised": "there-b"}, ConfigFile())
    (only,) = make_settings({"proxy_protocol": True, "advertised": "there-b:3"}, ConfigFile()).listeners
    assert only == ListenerSettings(advertised_host="there-b", advertised_port=3, proxy_protocol=True)


def test_settings_reach_workers_as_they_are() -> None:
    settings = ServeSettings(listeners=(ListenerSettings(port=1), ListenerSettings(port=2, namespace="b")))
    assert ServeSettings.from_json(settings.to_json()) == settings


@pytest.mark.parametrize(
    ("text", "address"), [("127.0.0.1:9092", ("127.0.0.1", 9092)), (":9092", ("0.0.0.0", 9092)), ("[::]:0", ("::", 0))]
)
def test_addresses_are_parsed(text: str, address: tuple[str, int]) -> None:
    assert parse_address(text, "--listen") == address


@pytest.mark.parametrize("text", ["9092", "host:", "host:port", "::1:9092", "host:65536", ""])
def test_wrong_address_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="not HOST:PORT"):
        parse_address(text, "--listen")


def test_broker_with_embedded_server_from_a_config_file(directory: Path, capfd: pytest.CaptureFixture[str]) -> None:
    file = directory / "korvet.toml"
    file.write_text(
        '[serve]\nlisten = "127.0.0.1:0"\ndata-dir = "there"\nlog-format = "json"\n[broker]\nnum.partitions = 7\n'
    )
    with serving(directory, "--config", str(file)) as process:
        ready = json.loads(ready_line(process))
        assert (ready["event"], ready["redis"].startswith("embedded Valkey ")) == ("ready", True)
        assert ready["redis"].endswith(f", new data in {directory}/there")
        (where,) = ready["listeners"]
        port = int(where.removeprefix("127.0.0.1:"))
        assert run(["topics", "create", "seven", "-b", f"127.0.0.1:{port}"]) == 0
        assert capfd.readouterr().out == "created topic seven with 7 partitions\n"
        assert run(["functions", "check", "--data-dir", str(directory / "there")]) == 0
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=120)
    assert (process.returncode, out) == (0, "")
    events = [json.loads(line)["event"] for line in err.splitlines()]
    assert events[-2:] == ["stopping; a second signal ends at once", "stopped"]


def test_redis_from_the_environment_and_ctrl_c(directory: Path, redis_server: Server) -> None:
    arguments = ("--listen", "127.0.0.1:0", "--namespace", "serve")
    with serving(directory, *arguments, KORVET_REDIS=redis_server.url) as process:
        line = ready_line(process)
        assert line.endswith(f" at {redis_server.url})\n")
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=120)
    assert process.returncode == 0
    assert "stopping; a second signal ends at once signal=SIGINT" in " ".join(err.split())
    assert err.splitlines()[-1].endswith("stopped")
    assert not (directory / "data").exists()


def test_embedded_server_is_found_if_its_sockets_path_is_too_long(directory: Path) -> None:
    deep = directory / ("d" * 60) / ("e" * 60)
    deep.mkdir(parents=True)
    for told in ("new data in", "data found in"):
        with serving(deep, "--listen", "127.0.0.1:0") as process:
            assert f", {told} {deep}/data)" in ready_line(process)
            assert run(["functions", "check", "--data-dir", str(deep / "data")]) == 0
            process.terminate()
            process.communicate(timeout=120)
    assert run(["functions", "check", "--data-dir", str(deep / "data")]) == 1


def test_port_in_use_is_one_line_and_exit_code_1(directory: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with serving(directory, "--listen", f"127.0.0.1:{port}") as process:
            out, err = process.communicate(timeout=120)
    assert (process.returncode, out) == (1, "")
    assert err.startswith("korvet: ")
    assert (str(port) in err, err.count("\n")) == (True, 1)


def test_data_directory_that_is_a_file_is_named(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = directory / "data"
    file.touch()
    what = f"{file} is a file; move it away, or name another directory with --data-dir"
    for path in (file, file / "in"):
        with serving(directory, "--listen", "127.0.0.1:0", "--data-dir", str(path)) as process:
            _, err = process.communicate(timeout=120)
        assert (process.returncode, err) == (1, f"korvet: data directory {path}: {what}\n")
    assert run(["doctor", "--data-dir", str(file)]) == 1
    assert capsys.readouterr().err.startswith(f"korvet: data directory {file} is a file; name the directory")


def test_reason_not_to_serve_is_logged_in_the_form_of_the_log(directory: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        where = f"127.0.0.1:{taken.getsockname()[1]}"
        with serving(directory, "--listen", where, "--log-format", "json") as process:
            out, err = process.communicate(timeout=120)
    assert (process.returncode, out) == (1, "")
    (line,) = map(json.loads, err.splitlines())
    assert (line["event"], where.split(":")[1] in line["reason"]) == ("cannot serve", True)


CONFIG = """
[serve]
workers = {workers}
listen = "127.0.0.1:0"
namespace = "{namespace}"
log-format = "json"
[broker]
num.partitions = {partitions}
max.connections = {connections}
socket.request.max.bytes = {most}
"""


def told(process: subprocess.Popen[str], event: str) -> dict[str, str]:
    """The next log line of this event."""
    assert process.stderr is not None
    for line in process.stderr:
        found: dict[str, str] = json.loads(line)
        if found["event"] == event:
            return found
    raise AssertionError(f"it ended without saying {event!r}")


@pytest.mark.parametrize("workers", [1, 2])
def test_hangup_rereads_the_config_file_and_ends_no_connection(
    directory: Path, redis_server: Server, workers: int
) -> None:
    file = directory / "korvet.toml"

    def write(**changes: int | str) -> None:
        told = {"workers": workers, "namespace": f"hup{workers}", "partitions": 1, "most": 1_000_000}
        file.write_text(CONFIG.format(**{**told, "connections": 1000, **changes}))

    def partitions(topic: str) -> int:
        with Client(where) as client:
            return create_topic(client, topic, configs={})

    write(connections=0)
    with serving(directory, "--config", str(file), KORVET_REDIS=redis_server.url) as process:
        (where,) = json.loads(ready_line(process))["listeners"]
        write()
        process.send_signal(signal.SIGHUP)
        assert told(process, "config file read again")["taken"] == "max.connections=1000"
        assert partitions("before") == 1
        write(partitions=3, most=2_000_000, namespace="other")
        process.send_signal(signal.SIGHUP)
        line = told(process, "config file read again")
        assert (line["taken"], line["needs_restart"]) == ("num.partitions=3", "socket.request.max.bytes, listeners")
        names = map("t{}".format, itertools.count())
        # Each topic is created over a new connection, so ten in a row reach every process.
        poll_until(lambda: all(partitions(next(names)) == 3 for _ in range(10)), "the new default in every process")
        file.write_text("[serve")
        process.send_signal(signal.SIGHUP)
        assert told(process, "config file not taken; the settings stay as they are")["reason"].startswith(str(file))
        assert partitions("after") == 3
        process.terminate()
        process.communicate(timeout=120)
    assert process.returncode == 0


def test_hangup_without_a_config_file_changes_nothing(directory: Path, redis_server: Server) -> None:
    arguments = ("--listen", "127.0.0.1:0", "--namespace", "hup0", "--log-format", "json")
    with serving(directory, *arguments, KORVET_REDIS=redis_server.url) as process:
        ready_line(process)
        process.send_signal(signal.SIGHUP)
        told(process, "there is no config file to read again; the settings stay as they are")
        process.terminate()
        process.communicate(timeout=120)
    assert process.returncode == 0
