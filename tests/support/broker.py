"""A korvet broker for tests: `korvet serve` as a process on a free port, with a temporary data directory.

A broker keeps its port over restarts. So the port lies outside the range from which the system gives out ports, or
another process might take it meanwhile.
"""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any

import pytest
import redis

from korvet.server.ground.settings import ListenerSettings, ServeSettings
from tests.support.ports import free_port
from tests.support.prefork import Forked, fork_front_end

READY_WITHIN_S = 120.0
STOPPED_WITHIN_S = 60.0
_BACK = "redis is back"
"""The log line that comes once every lost link is up again."""
_READY = re.compile(r"^korvet \S+ ready on (.+?) \((.*)\)$", re.MULTILINE)
ROOT = Path(__file__).parents[2]
UNINSTALLED = Path(__file__).with_name("uninstalled")
"""The module that hides a package which only tests install."""
WITHOUT = os.pathsep.join(map(str, (Path(__file__).with_name("without"), UNINSTALLED)))
"""The path of that one, and of modules that hide packages which front-ends do without."""
_TOLD_CHARACTERS = 3000
_running: dict[int, KorvetServer] = {}
_ended: deque[tuple[str, str]] = deque(maxlen=3)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show the ends of logs with a failed test: of each broker that runs, and of the last ones that the test ended."""
    report = yield
    if report.failed:
        report.sections += [*_ended, *(server.last_words for server in _running.values() if server.is_running)]
    return report


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    _ended.clear()


class BrokerFailed(AssertionError):
    """The broker did not become ready, did not end, or did not find Redis again."""


class KorvetServer:
    """One broker: its process, its data directory, its log.

    :param redis_url: an external Redis; without it the embedded server, with its data in ``directory / "data"``.
    :param listeners: the broker's listeners, if it has several; else ``port``, ``namespace``, ``advertised`` and
        ``proxy_protocol`` describe the only one. The port 0 stands for a free one; for ``listeners`` the first start
        chooses it.
    :param broker: broker settings under Kafka's names.
    :param has_metrics: whether it has the HTTP port, at ``metrics_port``.
    :param console: the console on that port.
    :param tenant_redis_passwords: the directory with the passwords of tenants' Redis users.
    :param tier: the directory or URL of the tier, with ``tier_cache`` as a cache on the disk.
    :param root: the directory of the clone that holds the code.
    """

    def __init__(
        self,
        directory: Path,
        *,
        redis_url: str | None = None,
        workers: int = 1,
        port: int = 0,
        namespace: str = "default",
        advertised: tuple[str, int] | tuple[str, int, int] | None = None,
        proxy_protocol: bool = False,
        listeners: Sequence[ListenerSettings] = (),
        broker: Mapping[str, str] = MappingProxyType({}),
        has_metrics: bool = False,
        console: str = "off",
        tenant_redis_passwords: Path | None = None,
        tier: str | None = None,
        tier_cache: Path | None = None,
        root: Path = ROOT,
    ) -> None:
        self.directory = directory
        self.data_dir = directory / "data"
        self.log_path = directory / "korvet.log"
        self.redis_url = redis_url
        self.workers = workers
        self.broker = dict(broker)
        self.metrics_port = free_port() if has_metrics else 0
        self.console = console
        self.tenant_redis_passwords = tenant_redis_passwords
        self.tier, self.tier_cache = tier, tier_cache
        self.root = root
        host, advertised_port, last_port = (*advertised, None)[:3] if advertised else (None, None, None)
        self.listeners = tuple(listeners) or (
            ListenerSettings(
                port=port or free_port(),
                namespace=namespace,
                advertised_host=host,
                advertised_port=advertised_port,
                advertised_last_port=last_port,
                proxy_protocol=proxy_protocol,
            ),
        )
        self.ready_line = ""
        self.process: subprocess.Popen[bytes] | Forked | None = None

    @property
    def ports(self) -> list[int]:
        """The ports of its listeners, in order."""
        return [listener.port for listener in self.listeners]

    @property
    def port(self) -> int:
        """The port of the only listener, or of the first."""
        return self.ports[0]

    @property
    def bootstrap(self) -> str:
        """``127.0.0.1:PORT``; the same over restarts."""
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    @property
    def log(self) -> str:
        """All its output to stderr, over all restarts."""
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""

    @property
    def last_words(self) -> tuple[str, str]:
        """A title, and the end of its log."""
        return f"log of the broker at {self.bootstrap}", self.log[-_TOLD_CHARACTERS:]

    @property
    def embedded_socket(self) -> Path:
        """The unix socket of the embedded server."""
        return self.data_dir / "valkey.sock"

    @property
    def embedded_pid(self) -> int:
        """The process id of the embedded server, by its own INFO."""
        with self.redis() as client:
            return int(client.info("server")["process_id"])

    def redis(self) -> redis.Redis:
        """A new client of the Redis behind the broker; the caller closes it."""
        return redis.Redis.from_url(self.redis_url or f"unix://{self.embedded_socket}")

    def settings(self) -> ServeSettings:
        return ServeSettings(
            listeners=self.listeners,
            redis_url=self.redis_url,
            tenant_redis_passwords=self.tenant_redis_passwords,
            tier=self.tier,
            tier_cache=self.tier_cache,
            data_dir=self.data_dir,
            workers=self.workers,
            metrics=("127.0.0.1", self.metrics_port) if self.metrics_port else None,
            console=self.console,
            broker=self.broker,
        )

    def start(self, *, wait: bool = True) -> KorvetServer:
        """Start the broker and wait for its ready line.

        :raises BrokerFailed: if the line does not come.
        """
        assert not self.is_running
        with open(self.log_path, "ab") as log:
            self.process = self._run(self.settings().to_json(), log)
        _running[self.process.pid] = self
        if wait:
            self.wait_until_ready()
        return self

    def _run(self, arguments: str, log: IO[bytes]) -> subprocess.Popen[bytes] | Forked:
        env = {**os.environ, "PYTHONPATH": WITHOUT}
        if self.root == ROOT and sys.platform == "linux":
            return fork_front_end(arguments, stderr=log.fileno(), env=env, root=ROOT)
        return subprocess.Popen(
            [sys.executable, "-m", "korvet.server", arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            cwd=self.root,
            env=env,
            start_new_session=True,
        )

    def wait_until_ready(self) -> None:
        """Read stdout up to the ready line."""
        assert self.process is not None and self.process.stdout is not None
        seen, deadline = "", time.monotonic() + READY_WITHIN_S
        while (match := _READY.search(seen)) is None:
            readable, _, _ = select.select([self.process.stdout], [], [], max(0.0, deadline - time.monotonic()))
            text = os.read(self.process.stdout.fileno(), 4096).decode() if readable else ""
            if not text:
                self.kill()
                raise BrokerFailed(f"no ready line; it wrote {seen!r} and\n{self.log[-3000:]}")
            seen += text
        self.ready_line = match[0]
        ports = [int(address.rpartition(":")[2]) for address in match[1].split(", ")]
        self.listeners = tuple(
            replace(listener, port=port) for listener, port in zip(self.listeners, ports, strict=True)
        )

    def stop(self) -> int:
        """Send SIGTERM, as an operator does; returns the exit code.

        :raises BrokerFailed: if the broker does not end; then it is killed.
        """
        return self._end(signal.SIGTERM)

    def kill(self) -> int:
        """Send SIGKILL, as a crash does, and wait until the embedded server has noticed and ended too."""
        embedded = self._embedded_pid_if_any()
        code = self._end(signal.SIGKILL)
        if embedded:
            _wait_for_end(embedded)
        return code

    def restart(self, *, crash: bool = False) -> KorvetServer:
        """Stop or kill the broker, and start it on the same port, data and settings."""
        if crash:
            self.kill()
        else:
            self.stop()
        return self.start()

    def kill_embedded(self) -> None:
        """Kill the embedded server with SIGKILL; the broker starts it again."""
        pid = self.embedded_pid
        os.kill(pid, signal.SIGKILL)
        _wait_for_end(pid)

    @contextmanager
    def redis_outage(self) -> Iterator[None]:
        """A block in which Redis goes away and returns. Its end waits until all of the broker's links are up again.

        Each link connects by itself, so a read may be answered before appends and coordination are.

        :raises BrokerFailed: if they do not come up.
        """
        before = self.log.count(_BACK)
        yield
        deadline = time.monotonic() + READY_WITHIN_S
        while self.log.count(_BACK) == before:
            if time.monotonic() > deadline:
                raise BrokerFailed(f"Redis is not back:\n{self.log[-3000:]}")
            time.sleep(0.01)

    def _embedded_pid_if_any(self) -> int:
        if self.redis_url is not None or not self.is_running:
            return 0
        try:
            return self.embedded_pid
        except redis.RedisError:
            return 0

    def _end(self, number: signal.Signals) -> int:
        process = self.process
        if process is None:
            return 0
        if process.poll() is None:
            process.send_signal(number)
        try:
            code = process.wait(STOPPED_WITHIN_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise BrokerFailed(f"it did not end within {STOPPED_WITHIN_S} s:\n{self.log[-3000:]}") from None
        finally:
            if _running.pop(process.pid, None) is not None:
                _ended.append(self.last_words)
            if process.stdout is not None:
                process.stdout.close()
        self.process = None
        return code


def _wait_for_end(pid: int) -> None:
    """Wait until a process that is not our child has ended."""
    deadline = time.monotonic() + STOPPED_WITHIN_S
    while is_alive(pid):
        if time.monotonic() > deadline:
            os.kill(pid, signal.SIGKILL)
            raise BrokerFailed(f"process {pid} did not end")
        time.sleep(0.01)


def is_alive(pid: int) -> bool:
    """Whether a process runs. A zombie does not; it may have no parent to reap it."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        if Path("/proc/self").exists():
            return False
    except ProcessLookupError:
        return False
    else:
        return state not in "ZX"
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@contextmanager
def running_broker(*, directory: Path | None = None, **options: Any) -> Iterator[KorvetServer]:
    """Run a broker with `KorvetServer`'s options until the block ends; it is ready at the start."""
    with ExitStack() as stack:
        # The path of a unix socket has about a hundred characters at most, so names are short.
        directory = directory or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kv")))
        server = KorvetServer(directory, **options)
        try:
            yield server.start()
        finally:
            server.kill()


@pytest.fixture(scope="session")
def broker() -> Iterator[KorvetServer]:
    """One broker with the embedded server for the session; tests use topics and groups with distinct names."""
    with running_broker() as server:
        yield server
