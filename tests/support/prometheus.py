"""A real Prometheus on loopback, which scrapes a broker each second and evaluates the rules of deploy/prometheus."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.parse import urlencode
from urllib.request import urlopen

from tests.support.ports import free_port
from tests.support.tools import find_tool

RULES = Path(__file__).resolve().parents[2] / "deploy" / "prometheus" / "korvet.rules.yml"
WITHIN_S = 120.0
_CONFIG = """
global: {{scrape_interval: 1s, evaluation_interval: 1s}}
rule_files: [{rules}]
scrape_configs:
  - job_name: korvet
    static_configs: [{{targets: ["127.0.0.1:{port}"]}}]
"""
_COMPARISONS = (">=", "<=", "==", "!=", ">", "<")
_WORDS = (" and ", " or ", " unless ")


class Prometheus:
    """A running one, at a port."""

    def __init__(self, port: int) -> None:
        self._port = port

    def _ask(self, path: str, **parameters: str) -> Any:
        with urlopen(
            f"http://127.0.0.1:{self._port}/api/v1/{path}?{urlencode(parameters)}", timeout=WITHIN_S
        ) as answer:
            told = json.load(answer)
        assert told["status"] == "success", told
        return told["data"]

    def is_ready(self) -> bool:
        try:
            return bool(self.query("up == 1"))
        except (URLError, ConnectionError):
            return False

    def query(self, expression: str) -> Sequence[Mapping[str, Any]]:
        """The values of an expression now."""
        data = self._ask("query", query=expression)
        assert data["resultType"] in ("vector", "scalar"), expression
        return [{"value": data["result"]}] if data["resultType"] == "scalar" else list(data["result"])

    def rules(self) -> Sequence[Mapping[str, Any]]:
        """All alert rules, as it has loaded and evaluated them."""
        return [rule for group in self._ask("rules")["groups"] for rule in group["rules"]]


@contextmanager
def running_prometheus(directory: Path, metrics_port: int) -> Iterator[Prometheus]:
    """Run one until the block ends; it has scraped the port at the start."""
    program, port = find_tool("prometheus"), free_port()
    config = directory / "prometheus.yml"
    config.write_text(_CONFIG.format(rules=RULES, port=metrics_port))
    arguments = [
        f"--config.file={config}", f"--storage.tsdb.path={directory / 'tsdb'}", f"--web.listen-address=127.0.0.1:{port}"
    ]  # fmt: skip
    with open(directory / "prometheus.log", "wb") as log:
        process = subprocess.Popen([program, *arguments], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        prometheus, deadline = Prometheus(port), time.monotonic() + WITHIN_S
        while not prometheus.is_ready():
            assert process.poll() is None and time.monotonic() < deadline, (directory / "prometheus.log").read_text()
            time.sleep(0.1)
        yield prometheus
    finally:
        process.kill()
        process.wait()


def operands(expression: str) -> list[str]:
    """The parts of an expression between its outermost comparisons and set operators, without plain numbers."""
    parts, depth, quote, begin, at = [], 0, "", 0, 0
    while at < len(expression):
        letter = expression[at]
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "\"'":
            quote = letter
        elif letter in "([{":
            depth += 1
        elif letter in ")]}":
            depth -= 1
        elif depth == 0:
            found = next((one for one in (*_WORDS, *_COMPARISONS) if expression.startswith(one, at)), None)
            if found is not None:
                parts.append(expression[begin:at])
                begin = at = at + len(found)
                continue
        at += 1
    parts.append(expression[begin:])
    return [part.strip() for part in parts if not _is_number(part)]


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
