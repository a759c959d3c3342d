"""The image: what it says of itself, and that it serves clients with little more than a read-only root."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import korvet
from tests.deploy.image import WITHIN_S, Container, Image, built_image, children, running
from tests.support.redis import running_server
from tests.support.tools import find_tool
from tests.support.topologies import until

MOST_BYTES = 160 << 20
"""The bound of what the image adds to its base."""
UNPRIVILEGED = 10001


@pytest.fixture(scope="module")
def image() -> Iterator[Image]:
    with built_image() as built:
        yield built


@pytest.fixture
def data() -> Iterator[Path]:
    """A directory for the container's volume."""
    with tempfile.TemporaryDirectory(prefix="kv") as name:
        volume = Path(name) / "data"
        volume.mkdir()
        yield volume


def kcat(container: Container, *arguments: str, told: str = "") -> str:
    command = [find_tool("kcat"), "-b", f"127.0.0.1:{container.port}", *arguments]
    return subprocess.run(command, input=told, capture_output=True, text=True, check=True, timeout=WITHIN_S).stdout


def exchange(container: Container) -> None:
    """Produce and consume with kcat."""
    kcat(container, "-P", "-t", "shipped", told="first\nsecond\n")
    assert kcat(container, "-C", "-t", "shipped", "-e", "-q") == "first\nsecond\n"


def size_bytes(directory: Path) -> int:
    paths = (Path(folder) / name for folder, _, names in os.walk(directory) for name in names)
    return sum(path.lstat().st_size for path in paths)


def test_image_says_how_it_wants_to_be_run(image: Image) -> None:
    assert image.config["User"] == f"{UNPRIVILEGED}:{UNPRIVILEGED}"
    assert set(image.config["Volumes"]) == {"/data"}
    assert "9092/tcp" in image.config["ExposedPorts"]
    assert image.command == ["/opt/korvet/bin/korvet", "serve"]


def test_image_is_small_and_holds_no_installer(image: Image) -> None:
    installed = image.root / "opt" / "korvet"
    assert size_bytes(installed) < MOST_BYTES
    assert not list(installed.glob("lib/python3*/site-packages/pip*"))
    assert not (image.root / "src").exists()


def test_container_serves_with_a_read_only_root_and_keeps_its_data(image: Image, data: Path) -> None:
    with running(image, data) as container:
        exchange(container)
        assert container.execute("korvet", "--version").stdout == f"korvet {korvet.__version__}\n"
        assert container.execute("sh", "-c", "touch /opt/x || touch /etc/x").returncode != 0
        assert Path(f"/proc/{container.init}").stat().st_uid == UNPRIVILEGED
        # The worker and the embedded server are children of the one process, and end with it.
        family = children(container.init)
        assert len(family) == 2
        assert container.stop() == 0
        assert not any(Path(f"/proc/{child}").exists() for child in family)
    with running(image, data) as container:
        assert kcat(container, "-C", "-t", "shipped", "-e", "-q") == "first\nsecond\n"
        init = container.init
    # It was not stopped, and ends with the process that ran it.
    until(lambda: not Path(f"/proc/{init}").exists(), "the container ends")


def test_health_check_shows_whether_clients_may_come(image: Image, data: Path) -> None:
    kind, *check = image.config["Healthcheck"]["Test"]
    assert kind == "CMD"
    with running_server("valkey", tcp=True) as server, running(image, data, KORVET_REDIS=server.tcp_url) as container:
        check = [word.replace(":9464/", f":{container.metrics_port}/") for word in check]
        until(lambda: container.execute(*check).returncode == 0, "the container is healthy")
        server.kill()
        until(lambda: container.execute(*check).returncode != 0, "the container is not healthy without Redis")


def test_container_on_a_redis_of_its_own_writes_nothing(image: Image, data: Path) -> None:
    with running_server("valkey", tcp=True) as server, running(image, data, KORVET_REDIS=server.tcp_url) as container:
        exchange(container)
        assert container.stop() == 0
    assert list(data.iterdir()) == []
