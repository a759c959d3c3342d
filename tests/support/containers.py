"""Redis and Valkey in containers, by testcontainers, if Docker answers.

A container shares this machine's network and this user's rights, and has the server's directory at the same path. Its
ports, unix socket and files are therefore the same as those of a binary on this machine.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from types import MappingProxyType

from docker.errors import DockerException
from requests.exceptions import RequestException
from testcontainers.core.container import DockerContainer
from testcontainers.core.docker_client import get_docker_host

IMAGES: Mapping[str, str] = MappingProxyType(
    {"valkey": "valkey/valkey:9.1", "redis": "redis:7.0", "redis8": "redis:8.2"}
)
ANSWERS_WITHIN_S = 5.0
FAILURES = (DockerException, RequestException)


@cache
def docker_answers() -> bool:
    """Whether this machine's Docker answers, with containers that can share the machine's network and files."""
    scheme, _, path = (get_docker_host() or "unix:///var/run/docker.sock").partition("://")
    if sys.platform != "linux" or scheme != "unix":
        return False
    # Docker's own client leaves its socket open if no daemon listens.
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(ANSWERS_WITHIN_S)
        try:
            connection.connect(path)
            connection.sendall(b"GET /_ping HTTP/1.0\r\n\r\n")
            return connection.recv(64).startswith(b"HTTP/")
        except OSError:
            return False


class Contained:
    """One run of a server in a container, with the methods of ``subprocess.Popen`` that `Server` uses.

    ``command`` is a program of the image and its arguments; ``output`` gets the server's output after it has ended.
    Raises one of FAILURES if Docker cannot get the image or the container does not start.
    """

    def __init__(self, image: str, command: Sequence[str], directory: Path, output: Path) -> None:
        self._container = (
            DockerContainer(image)
            .with_command(list(command))
            .with_volume_mapping(directory, str(directory), "rw")
            .with_kwargs(network="host", user=f"{os.getuid()}:{os.getgid()}", working_dir=str(directory))
        )
        self._output = output
        self._code: int | None = None
        try:
            self._container.start()
        except BaseException:
            self._container.stop()
            raise

    def poll(self) -> int | None:
        """The exit code; None while the server runs."""
        if self._code is None:
            self._container.reload()
            if self._container.status == "exited":
                return self.wait()
        return self._code

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the server's end and remove the container. Raises one of FAILURES after ``timeout`` seconds."""
        if self._code is None:
            self._code = int(self._container.get_wrapped_container().wait(timeout=timeout)["StatusCode"])
            with open(self._output, "ab") as output:
                output.writelines(self._container.get_logs())
            self._container.stop()
        return self._code

    def send_signal(self, sig: int) -> None:
        """Send a signal to the server."""
        self._container.get_wrapped_container().kill(signal=signal.Signals(sig).name)
