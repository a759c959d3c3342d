"""The image of the Dockerfile: built by buildah on a base of mmdebstrap, and run from its root directory.

No registry is asked. A container of the test has what the image says (user, environment, command), a read-only root,
and process ids of its own; it shares the network.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.kafka.builds import BuildError
from tests.support.broker import ROOT
from tests.support.ports import free_port
from tests.support.tools import cannot_run, find_tool

CACHE = ROOT / ".cache" / "image"
BUILD_WITHIN_S = 900.0
WITHIN_S = 120.0
SUITE = "bookworm"
_CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")


def base() -> Path:
    """A small Debian with Python, as a tar file; made once. Raises BuildError."""
    if os.geteuid() != 0:
        cannot_run("only root can make an image here")
    path = CACHE / f"{SUITE}.tar"
    CACHE.mkdir(parents=True, exist_ok=True)
    with open(CACHE / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            partial = path.with_suffix(".partial.tar")
            command = [find_tool("mmdebstrap"), "--quiet", "--variant=minbase", "--include=python3-venv"]
            _run([*command, SUITE, str(partial)], within_s=BUILD_WITHIN_S)
            partial.rename(path)
    return path


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """A built image: its unpacked root directory, and its configuration as Docker's."""

    root: Path
    config: Mapping[str, Any]

    @property
    def command(self) -> list[str]:
        return [*self.config["Entrypoint"], *self.config["Cmd"]]


@contextmanager
def built_image() -> Iterator[Image]:
    """Build the image of this clone, and unpack it for the time of the block. Raises BuildError."""
    debian = base()
    with tempfile.TemporaryDirectory(prefix="korvet-image-", dir=CACHE) as name:
        storage = Path(name)
        buildah = _Buildah(storage)
        container = buildah.run("from", "scratch")
        buildah.run("add", container, str(debian), "/")
        buildah.run("commit", "--rm", container, "korvet-base")
        build = ["build", "--format", "docker", "--build-arg", "BASE=korvet-base", "--tag", "korvet"]
        buildah.run(*build, *_ways_to_packages(storage), str(ROOT))
        container = buildah.run("from", "--pull-never", "korvet")
        inspected = json.loads(buildah.run("inspect", "--type", "image", "korvet"))
        root = Path(buildah.run("mount", container))
        try:
            yield Image(root=root, config=inspected["Docker"]["config"])
        finally:
            buildah.run("umount", container)


def _ways_to_packages(directory: Path) -> list[str]:
    """What the build needs to fetch packages as this machine does: pip's settings and the certificates."""
    listed = subprocess.run(
        ["python3", "-m", "pip", "config", "list"], capture_output=True, text=True, check=True, timeout=WITHIN_S
    ).stdout
    lines = [
        line.removeprefix("global.").replace("'", "") for line in listed.splitlines() if line.startswith("global.")
    ]
    settings = directory / "pip.conf"
    settings.write_text("\n".join(["[global]", *lines]) + "\n")
    found = ["--secret", f"id=pip,src={settings}"]
    if _CERTIFICATES.exists():
        found += ["--volume", f"{_CERTIFICATES}:{_CERTIFICATES}:ro"]
    return found


class _Buildah:
    """buildah with a storage of its own, which needs no daemon and no overlay file system."""

    def __init__(self, storage: Path) -> None:
        self._options = ["--root", str(storage / "root"), "--runroot", str(storage / "run"), "--storage-driver", "vfs"]

    def run(self, verb: str, *arguments: str) -> str:
        isolated = ["--isolation", "chroot"] if verb in ("build", "from") else []
        return _run(
            [find_tool("buildah"), *self._options, verb, *isolated, *arguments], within_s=BUILD_WITHIN_S
        ).strip()


class Container:
    """A running container; ``port`` is that of its broker, and ``metrics_port`` that of its health."""

    def __init__(self, process: subprocess.Popen[str], image: Image, environment: Mapping[str, str]) -> None:
        self.process = process
        self.port, self.metrics_port = (
            int(environment[name].rpartition(":")[2]) for name in ("KORVET_LISTEN", "KORVET_METRICS")
        )
        self._image = image
        self._environment = environment

    @property
    def init(self) -> int:
        """The process that is number 1 within the container."""
        (child,) = children(self.process.pid)
        return child

    def execute(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a command in the container, as the image's user."""
        inside = ["nsenter", "--target", str(self.init), "--mount", "--pid"]
        return subprocess.run(
            [*inside, *_entered(self._image, self._environment, command)],
            capture_output=True, text=True, check=False, timeout=WITHIN_S,
        )  # fmt: skip

    def stop(self) -> int:
        """Stop it as ``docker stop`` does; the exit code."""
        os.kill(self.init, signal.SIGTERM)
        return self.process.wait(WITHIN_S)


@contextmanager
def running(image: Image, data: Path, **environment: str) -> Iterator[Container]:
    """Run the image's own command with a read-only root and ``data`` as its volume, until it is ready."""
    # The network is this machine's, so ports are free ones.
    ports = {name: f"127.0.0.1:{free_port()}" for name in ("KORVET_LISTEN", "KORVET_METRICS")}
    given = {**ports, **environment}
    uid, gid = (int(part) for part in image.config["User"].split(":"))
    os.chown(data, uid, gid)
    root = image.root
    steps = [
        f"mount --bind {root} {root}",
        f"mount --rbind /dev {root}/dev",
        f"mount --bind {data} {root}/data",
        f"mount -o remount,ro,bind {root}",
        f"mount -t proc proc {root}/proc",
        'exec "$@"',
    ]
    isolated = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-ec", "\n".join(steps), "sh"]
    with open(data.parent / "output.txt", "a+") as output, subprocess.Popen(
        [*isolated, *_entered(image, given, image.command)],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=output, text=True,
    ) as process:  # fmt: skip
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            output.seek(0)
            assert " ready on " in line, output.read()
            yield Container(process, image, given)
        finally:
            process.kill()


def _entered(image: Image, environment: Mapping[str, str], command: Sequence[str]) -> list[str]:
    variables = [*image.config["Env"], *(f"{name}={value}" for name, value in environment.items())]
    uid, gid = image.config["User"].split(":")
    # Another user id ends the signal by which the process dies with its parent, unless it is asked for again.
    user = [f"--reuid={uid}", f"--regid={gid}", "--clear-groups", "--no-new-privs", "--bounding-set=-all"]
    user.append("--pdeathsig=KILL")
    return ["chroot", str(image.root), "setpriv", *user, "env", "-i", *variables, *command]


def children(pid: int) -> list[int]:
    """The process ids of a process's children."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _run(command: list[str], *, within_s: float) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=within_s)
    if done.returncode != 0:
        raise BuildError(f"{' '.join(command)} failed:\n{done.stdout[-2000:]}{done.stderr[-3000:]}")
    return done.stdout
