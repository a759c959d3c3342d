"""scripts/bench runs from start to end and finds a value for every line, however small the load."""

import json
import subprocess
import sys
from pathlib import Path

from scripts.benchmark.measures import measures
from tests.support.broker import KorvetServer

ROOT = Path(__file__).parents[2]
GROUPS = ("produce", "consume", "latency", "groups")


def test_a_short_run_measures_every_line(tmp_path: Path) -> None:
    written = tmp_path / "values.json"
    command = [sys.executable, "-m", "scripts.benchmark", "--rounds", "1", "--seconds", "0.2"]
    done = subprocess.run(
        [*command, "--only", ",".join(GROUPS), "--json", str(written)],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    values = json.loads(written.read_text())["values"]
    expected = {f"{m.name}.{line.key}" for m in measures(0.2) if m.group in GROUPS for line in m.lines}
    assert {line for line, brokers in values.items() if brokers["korvet"][0] > 0} == expected


def work(job: dict[str, object]) -> dict[str, float]:
    done = subprocess.run(
        [sys.executable, "-m", "scripts.benchmark.worker", json.dumps(job)],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    result: dict[str, float] = json.loads(done.stdout)
    return result


def test_groups_of_any_size_are_measured(broker: KorvetServer) -> None:
    joined = work({"job": "joining", "address": broker.bootstrap, "sizes": [3]})
    assert set(joined) == {"join_3_s", "one_more_3_s"}
    where = {"address": broker.bootstrap, "redis_url": f"unix://{broker.embedded_socket}"}
    costs = work({"job": "group_costs", **where, "sizes": [3], "counts": [5]})
    assert set(costs) == {
        "group_5_bytes", "offset_bytes", "member_3_bytes", "heartbeat_0_us", "heartbeat_5_us", "heartbeat_of_3_us"
    }  # fmt: skip
    # The bytes of so few are lost in what else moves in the server's memory.
    assert all(value > 0 for name, value in costs.items() if name.startswith("heartbeat"))


def test_groups_of_the_consumer_protocol_are_measured(broker: KorvetServer) -> None:
    settled = work({"job": "settling", "address": broker.bootstrap, "sizes": [3]})
    assert set(settled) == {"settle_3_s", "heartbeat_of_3_ms"}
    where = {"address": broker.bootstrap, "redis_url": f"unix://{broker.embedded_socket}"}
    costs = work({"job": "consumer_costs", **where, "sizes": [3]})
    assert set(costs) == {"heartbeat_of_3_us"}
    assert all(value > 0 for value in (*settled.values(), *costs.values()))


def test_a_group_of_measures_that_does_not_exist_is_named() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "scripts.benchmark", "--only", "speed"],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 2
    assert "speed; known: produce, consume, latency, groups, scale, consumers, process, pipeline" in done.stderr
