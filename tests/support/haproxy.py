"""HAProxy in front of some front-ends, with the configuration that docs/load-balancer.md shows."""

from __future__ import annotations

import csv
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.support.ports import free_ports
from tests.support.tools import find_tool

PAGE = Path(__file__).parents[2] / "docs" / "load-balancer.md"
WITHIN_S = 150.0
PORTS = 6
"""The number of HAProxy's ports, which follow each other."""
_BEGIN = "    global"
_SERVER = "    server korvet-"


class HAProxyFailed(AssertionError):
    """HAProxy did not start, or did not reach an expected state in time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """A front-end as HAProxy sees it."""

    is_up: bool
    connections: int
    connections_ever: int


class HAProxy:
    """One HAProxy on free ports of loopback, in front of front-ends on ``ports``, which may come and go.

    :param bind: further words of the line ``bind``, such as ``ssl crt FILE``.
    :param proxy: further words behind ``send-proxy-v2``.
    """

    def __init__(self, directory: Path, ports: Sequence[int], *, bind: str = "", proxy: str = "") -> None:
        self.directory = directory
        self.port = free_ports(PORTS)
        self.ports = list(ports)
        self.log_path = directory / "haproxy.log"
        self.process: subprocess.Popen[bytes] | None = None
        self._socket_path = directory / "h"
        self._words = (bind, proxy)

    @property
    def address(self) -> tuple[str, int, int]:
        """The advertised address of front-ends, with the first and the last port."""
        return "127.0.0.1", self.port, self.port + PORTS - 1

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    def start(self) -> None:
        """Start HAProxy and wait until it answers; the front-ends need not run yet."""
        binary = find_tool("haproxy")
        path = self.directory / "haproxy.cfg"
        path.write_text(configuration(self.port, self.ports, self._socket_path, *self._words))
        with open(self.log_path, "ab") as log:
            self.process = subprocess.Popen(
                [binary, "-db", "-f", str(path)], stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        self.wait_for(lambda: self._socket_path.exists() and bool(self.backends()), "it answers")

    def stop(self) -> None:
        """End HAProxy by its process id, with all connections."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def command(self, text: str) -> str:
        """Send a command of HAProxy's Runtime API; returns the answer."""
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(WITHIN_S)
            client.connect(str(self._socket_path))
            client.sendall(text.encode() + b"\n")
            answer = b""
            while piece := client.recv(65536):
                answer += piece
        return answer.decode()

    def backends(self) -> list[Backend]:
        """The front-ends, in the order of their ports."""
        lines = self.command("show stat -1 4 -1").removeprefix("# ").splitlines()
        return [
            Backend(
                is_up=row["status"].startswith("UP"), connections=int(row["scur"]), connections_ever=int(row["stot"])
            )
            for row in csv.DictReader(line for line in lines if line)
        ]

    def wait_until_up(self, *, count: int | None = None) -> None:
        """Wait until ``count`` front-ends are up, by default all of them."""
        wanted = len(self.ports) if count is None else count
        self.wait_for(lambda: sum(one.is_up for one in self.backends()) == wanted, f"{wanted} front-ends are up")

    def wait_for(self, condition: Callable[[], bool], what: str) -> None:
        """Wait for a condition while HAProxy runs."""
        deadline = time.monotonic() + WITHIN_S
        while True:
            try:
                if condition():
                    return
            except OSError:
                pass
            if self.process is None or self.process.poll() is not None or time.monotonic() > deadline:
                raise HAProxyFailed(f"not seen: {what}\n{self.log[-3000:]}")
            time.sleep(0.01)


def configuration(port: int, ports: Sequence[int], socket_path: Path, bind: str = "", proxy: str = "") -> str:
    """The page's configuration with these addresses instead of its own, and perhaps further words."""
    lines = PAGE.read_text().split("\n")
    begin = lines.index(_BEGIN)
    end = next(at for at in range(begin, len(lines)) if lines[at] and not lines[at].startswith("    "))
    text = "\n".join(line.removeprefix("    ") for line in lines[begin:end] if not line.startswith("    " + _SERVER))
    for old, new in (
        ("bind :9092-9097", f"bind 127.0.0.1:{port}-{port + PORTS - 1} {bind}".rstrip()),
        ("send-proxy-v2 ", f"send-proxy-v2 {proxy} ".replace("  ", " ")),
        ("/run/haproxy.sock", str(socket_path)),
    ):
        assert text.count(old) == 1, f"{PAGE.name} has no {old}"
        text = text.replace(old, new)
    servers = [f"{_SERVER}{number} 127.0.0.1:{port}\n" for number, port in enumerate(ports, 1)]
    return text.rstrip() + "\n" + "".join(servers)


@contextmanager
def running_haproxy(
    ports: Sequence[int], *, directory: Path | None = None, bind: str = "", proxy: str = ""
) -> Iterator[HAProxy]:
    """Run a HAProxy in front of the front-ends on these ports, until the block ends."""
    with ExitStack() as stack:
        # The path of a unix socket has about a hundred characters at most, so names are short.
        directory = directory or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kv")))
        balancer = HAProxy(directory, ports, bind=bind, proxy=proxy)
        try:
            balancer.start()
            yield balancer
        finally:
            balancer.stop()
