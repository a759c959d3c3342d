"""A gate between a front-end and Redis, which a test can shut right before a call of the library.

Commands pass until the one comes that the test waits for. The gate holds this one and all behind it, on every
connection, until the test opens it. So a front-end stops exactly between two of its calls, or its calls lie in a
queue, under any load of the machine.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.support.redis import Server

WITHIN_S = 30.0

Command = Sequence[bytes]


def calls(
    function: str, *, at: int = 1, where: Callable[[Command], bool] = lambda _: True
) -> Callable[[Command], bool]:
    """Whether a command is the awaited call: the ``at``-th call of a function whose arguments fit ``where``."""
    seen = 0

    def is_it(command: Command) -> bool:
        nonlocal seen
        if command[0].upper() not in (b"FCALL", b"FCALL_RO") or command[1] != function.encode():
            return False
        first = 3 + int(command[2])
        seen += where(command[first:])
        return seen == at and where(command[first:])

    return is_it


class Gate:
    """A gate that listens on ``url`` and passes commands on to a server. `running_gate` makes one."""

    def __init__(self, server: Server, path: Path) -> None:
        self.url = f"unix://{path}"
        self._server = server
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()
        self._lock = threading.Lock()
        self._waits_for: Callable[[Command], bool] | None = None
        self._open = threading.Event()
        self._open.set()
        self._reached = threading.Event()
        self._sockets: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def shut_before(self, is_it: Callable[[Command], bool]) -> None:
        """Shut the gate before the next command that fits."""
        with self._lock:
            self._reached.clear()
            self._waits_for = is_it

    def wait_until_reached(self) -> None:
        """Wait until the gate holds that command. Raises TimeoutError."""
        if not self._reached.wait(WITHIN_S):
            raise TimeoutError(f"the gate was not reached within {WITHIN_S:g} s")

    def open(self) -> None:
        """Let all commands pass."""
        with self._lock:
            self._waits_for = None
        self._open.set()

    def close(self) -> None:
        """End every connection and thread."""
        self.open()
        for one in (self._listener, *self._sockets):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
        for thread in self._threads:
            thread.join(WITHIN_S)

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                front, _ = self._listener.accept()
                back = socket.socket(socket.AF_UNIX)
                back.connect(str(self._server.socket_path))
                self._sockets += [front, back]
                for target in (self._pass_commands, self._pass_answers):
                    thread = threading.Thread(target=target, args=(front, back), daemon=True)
                    self._threads.append(thread)
                    thread.start()

    def _pass_commands(self, front: socket.socket, back: socket.socket) -> None:
        with suppress(OSError, ValueError):
            for command, raw in _commands(front):
                with self._lock:
                    if self._waits_for is not None and self._waits_for(command):
                        self._waits_for = None
                        self._open.clear()
                        self._reached.set()
                self._open.wait()
                back.sendall(raw)
        _end(back)

    def _pass_answers(self, front: socket.socket, back: socket.socket) -> None:
        with suppress(OSError):
            while data := back.recv(1 << 16):
                front.sendall(data)
        _end(front)


def _end(one: socket.socket) -> None:
    with suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)


def _commands(front: socket.socket) -> Iterator[tuple[Command, bytes]]:
    """Each command of a connection, with its bytes. Raises ValueError if one is no array."""
    reader = front.makefile("rb")
    while head := reader.readline():
        raw, command = [head], []
        if head[:1] != b"*":
            raise ValueError(head)
        for _ in range(int(head[1:])):
            size = reader.readline()
            data = reader.read(int(size[1:]) + 2)
            raw += [size, data]
            command.append(data[:-2])
        yield command, b"".join(raw)


@contextmanager
def running_gate(server: Server, directory: Path) -> Iterator[Gate]:
    """A gate for the time of the block."""
    gate = Gate(server, directory / "gate")
    try:
        yield gate
    finally:
        gate.close()
