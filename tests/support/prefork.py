"""Front-ends of tests, forked from a process that has imported korvet already: importing is most of a start.

``python -m tests.support.prefork DESCRIPTOR`` is that process. `fork_front_end` starts it once for each process of
tests, and sends it requests over a socket: the arguments of ``python -m korvet.server`` and an environment, with
descriptors for stdout, stderr and the child's status. Each request becomes a child in a session of its own. Its status
is two numbers: the process id when it starts, and the exit code when it has ended. Tests fork on Linux alone, because
libraries of macOS do not bear it.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from struct import Struct
from threading import Lock
from typing import IO, Any

_MOST_REQUEST_BYTES = 1 << 18
_STANDARD = 3
"""The descriptors of stdin, stdout and stderr are below it."""
_NUMBER = Struct("=i")
_lock = Lock()
_doors: dict[Path, socket.socket] = {}


class Forked:
    """A forked front-end, with the part of `subprocess.Popen` that tests use."""

    def __init__(self, status: int, stdout: IO[bytes]) -> None:
        self.stdout = stdout
        self.returncode: int | None = None
        self._status = os.fdopen(status, "rb", buffering=0)
        self.pid = self._number()

    def poll(self) -> int | None:
        """The exit code; None while the process runs."""
        return self._code_within(0)

    def wait(self, timeout: float | None = None) -> int:
        """The exit code, as soon as there is one.

        :raises subprocess.TimeoutExpired: if there is none in so many seconds.
        """
        code = self._code_within(timeout)
        if code is None:
            raise subprocess.TimeoutExpired("a forked front-end", timeout or 0)
        return code

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal, if the process runs."""
        # The process that forked this one may have waited for it since.
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _code_within(self, timeout_s: float | None) -> int | None:
        if self.returncode is None:
            watched = select.poll()
            watched.register(self._status, select.POLLIN)
            if watched.poll(None if timeout_s is None else 1000 * timeout_s):
                self.returncode = self._number()
                self._status.close()
        return self.returncode

    def _number(self) -> int:
        told = self._status.read(_NUMBER.size)
        if not told:
            raise ChildProcessError("the process that forks front-ends has ended; what it wrote to stderr tells why")
        number: int = _NUMBER.unpack(told)[0]
        return number


def fork_front_end(arguments: str, *, stderr: int, env: Mapping[str, str], root: Path) -> Forked:
    """Run ``python -m korvet.server ARGUMENTS`` in a directory, with a pipe as its stdout.

    :param env: its environment; the PYTHONPATH of the first one counts for all.
    """
    (read, write), (status, told) = os.pipe(), os.pipe()
    request = json.dumps({"arguments": arguments, "env": dict(env)})
    try:
        with _lock:
            if root not in _doors:
                _doors[root] = _start(root, env)
            socket.send_fds(_doors[root], [request.encode()], [write, stderr, told])
    finally:
        os.close(write)
        os.close(told)
    return Forked(status, os.fdopen(read, "rb", buffering=0))


def _start(root: Path, env: Mapping[str, str]) -> socket.socket:
    """Start the process that forks; the socket to it. It ends with this process."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _MOST_REQUEST_BYTES)
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.prefork", str(theirs.fileno())],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, cwd=root, env=dict(env),
            pass_fds=(theirs.fileno(),), start_new_session=True,
        )  # fmt: skip
    process.returncode = 0  # no code waits for it
    atexit.register(ours.close)
    return ours


def _fork(door: socket.socket) -> str | None:
    """Fork at each request. In a child it returns the arguments; in the parent None, once no request can come."""
    children: dict[int, int] = {}
    ended, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    # The signal reaches the pipe only if it has a handler.
    signal.signal(signal.SIGCHLD, lambda *_: None)
    while True:
        ready = select.select([door.fileno(), ended], [], [])[0]
        if ended in ready:
            os.read(ended, select.PIPE_BUF)
            _tell_ends(children)
        if door.fileno() not in ready:
            continue
        text, descriptors, *_ = socket.recv_fds(door, _MOST_REQUEST_BYTES, 3)
        if not text:
            return None
        stdout, stderr, told = descriptors
        pid = os.fork()
        if pid == 0:
            return _become(json.loads(text), stdout, stderr)
        os.write(told, _NUMBER.pack(pid))
        children[pid] = told
        os.close(stdout)
        os.close(stderr)


def _tell_ends(children: dict[int, int]) -> None:
    """Tell the exit codes of the children that have ended, and forget these.

    :param children: process id -> descriptor of the status.
    """
    for pid in list(children):
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            told = children.pop(pid)
            # A test that was cut off no longer reads.
            with suppress(BrokenPipeError):
                os.write(told, _NUMBER.pack(os.waitstatus_to_exitcode(status)))
            os.close(told)


def _become(request: Any, stdout: int, stderr: int) -> str:
    """Take the session, the environment and the output of a request; its arguments."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    os.dup2(stdout, 1)
    os.dup2(stderr, 2)
    os.closerange(_STANDARD, os.sysconf("SC_OPEN_MAX"))
    os.environ.clear()
    os.environ.update(request["env"])
    arguments: str = request["arguments"]
    return arguments


def main() -> None:
    """Import what front-ends import, then fork them until the tests end."""
    import korvet.api
    import korvet.metrics.web
    import korvet.redis.discovery
    from korvet.server.ground.settings import ServeSettings
    from korvet.server.processes.main import run

    # Front-ends import it as they start their loop.
    import_module("uvloop")
    korvet.api.registry()
    gc.freeze()
    arguments = _fork(socket.socket(fileno=int(sys.argv[1])))
    if arguments is not None:
        sys.exit(run(ServeSettings.from_json(arguments)))


if __name__ == "__main__":
    main()
