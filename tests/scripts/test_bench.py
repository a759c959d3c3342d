"""scripts/bench runs from start to end and measures a value for every line, even with a small load."""

import json
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from scripts.benchmark import growth, idle, way
from scripts.benchmark.__main__ import starters
from scripts.benchmark.measures import measures
from tests.api.raw import created
from tests.support.broker import UNINSTALLED, KorvetServer

pytestmark = pytest.mark.all

ROOT = Path(__file__).parents[2]
HANGS_S = 500.0
"""A time that only a process that hangs takes, even on a busy machine. pytest ends a test after 600 s."""
GROUPS = ("produce", "consume", "latency", "groups")


@pytest.fixture(autouse=True)
def without_what_users_do_not_have(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes of the bench start as a user's do."""
    monkeypatch.setenv("PYTHONPATH", str(UNINSTALLED))


def test_short_run_measures_every_line(tmp_path: Path) -> None:
    written = tmp_path / "values.json"
    command = [sys.executable, "-m", "scripts.benchmark", "--rounds", "1", "--seconds", "0.1"]
    done = subprocess.run(
        [*command, "--only", ",".join(GROUPS), "--json", str(written)],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=HANGS_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(written.read_text())
    values = found["values"]
    expected = {f"{m.name}.{line.key}" for m in measures(0.1) if m.group in GROUPS for line in m.lines}
    assert {line for line, brokers in values.items() if brokers["korvet"][0] > 0} == expected
    roles = found["processor_us"]["produce-100"]["korvet"]
    assert set(roles) == {"client", "front-end", "Redis"}
    assert all(0 <= kernel <= total for total, kernel in roles.values())
    assert roles["client"][0] > 0


def test_korvet_with_metrics_is_measured_beside_the_one_without(tmp_path: Path) -> None:
    written = tmp_path / "values.json"
    command = [sys.executable, "-m", "scripts.benchmark", "--rounds", "1", "--seconds", "0.1", "--only", "latency"]
    done = subprocess.run(
        [*command, "--against", "metrics", "--json", str(written)],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=HANGS_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    values = json.loads(written.read_text())["values"]
    assert {name for brokers in values.values() for name in brokers} == {"korvet", "metrics"}


@pytest.mark.parametrize("name", ["korvet", "before", "metrics"])
def test_each_korvet_is_measured_with_the_workers_that_were_asked_for(name: str, tmp_path: Path) -> None:
    (start,) = starters([name], before=ROOT, workers=2)
    with start(tmp_path) as target:
        commands = [process.cmdline() for process in psutil.Process(target.pids[0]).children(recursive=True)]
    assert sum("korvet.server.processes.worker" in command for command in commands) == 2


def work(job: dict[str, object]) -> dict[str, float]:
    done = subprocess.run(
        [sys.executable, "-m", "scripts.benchmark.worker", json.dumps(job)],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=HANGS_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    result: dict[str, float] = json.loads(done.stdout)["result"]
    return result


def test_worker_measures_classic_groups(broker: KorvetServer) -> None:
    joined = work({"job": "joining", "address": broker.bootstrap, "sizes": [3]})
    assert set(joined) == {"join_3_s", "one_more_3_s"}
    where = {"address": broker.bootstrap, "redis_url": f"unix://{broker.embedded_socket}"}
    costs = work({"job": "group_costs", **where, "sizes": [3], "counts": [5]})
    assert set(costs) == {
        "group_5_bytes", "offset_bytes", "member_3_bytes", "heartbeat_0_us", "heartbeat_5_us", "heartbeat_of_3_us"
    }  # fmt: skip
    # The bytes of so few groups are lost among other changes of the server's memory.
    assert all(value > 0 for name, value in costs.items() if name.startswith("heartbeat"))


def test_worker_measures_groups_of_the_consumer_protocol(broker: KorvetServer) -> None:
    settled = work({"job": "settling", "address": broker.bootstrap, "sizes": [3]})
    assert set(settled) == {"settle_3_s", "heartbeat_of_3_ms"}
    where = {"address": broker.bootstrap, "redis_url": f"unix://{broker.embedded_socket}"}
    costs = work({"job": "consumer_costs", **where, "sizes": [3]})
    assert set(costs) == {"heartbeat_of_3_us"}
    assert all(value > 0 for value in (*settled.values(), *costs.values()))


def test_worker_measures_requests_of_growing_work(broker: KorvetServer) -> None:
    reads = work({"job": "partitions", "address": broker.bootstrap, "count": 3})
    assert set(reads) == {"create_ms", "metadata_ms", "produce_us", "fetch_ms", "fetch_end_ms"}
    crowd = {"count": 2, "seconds": 0.1, "pids": [broker.pid]}
    beats = work({"job": "connections", "address": broker.bootstrap, **crowd})
    assert set(beats) == {"idle_kib", "busy_kib", "beside_ms", "requests_per_s"}
    created(broker.port, name="batches")
    where = {"address": broker.bootstrap, "topic": "batches"}
    firsts = work({"job": "first_reads", **where, "offset": 0, "time_ms": 0})
    assert set(firsts) == {"fetch_ms", "again_ms", "by_time_ms"}
    # The memory of so few connections may be memory that the process had.
    assert all(value > 0 for name, value in {**reads, **beats, **firsts}.items() if not name.endswith("_kib"))


def test_worker_measures_small_requests_beside_a_producer(broker: KorvetServer) -> None:
    found = work({"job": "neighbours", "address": broker.bootstrap, "seconds": 0.2, "value_bytes": 1, "producers": 1})
    apis = ("heartbeat", "produce", "fetch")
    assert set(found) == {"count"} | {f"{api}_{percentile}_ms" for api in apis for percentile in ("p50", "p99")}
    assert all(value > 0 for value in found.values())


def test_growth_has_a_row_for_each_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(growth, "PARTITIONS", (1, 2))
    table = growth.partitions()
    assert [row[0] for row in table.rows] == ["1", "2"]


def test_growth_of_shards_serves_a_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("SHARDS", (1,)), ("SECONDS", 0.2), ("REPEATS", 1), ("PRODUCERS", 2), ("MOST_BYTES", 60_000)):
        monkeypatch.setattr(growth, name, value)
    ((shards, single, batched, front_end, redis, part, most),) = growth.shards().rows
    assert (shards, part) == ("1", "100")
    assert int(single.replace(",", "")) > 0
    assert int(batched.replace(",", "")) >= 0
    assert int(front_end) > 0 and float(redis) > 0 and int(most.replace(",", "")) > 0


def test_idle_namespaces_and_tenants_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idle, "WORKERS", 2)
    costs = list(idle.run([3], [2], settles_s=0.0, measured_s=1.0))
    assert [cost.what for cost in costs] == ["3 fixed namespaces", "2 tenants"]
    assert all(0 <= cost.of_redis <= cost.busy and cost.memory_mb > 100 for cost in costs)


def test_way_of_a_record_has_all_steps_in_their_order() -> None:
    steps = {step.name: step.p50_us for step in way.run(records=20)}
    assert len(steps) == 10
    assert all(microseconds > 0 for microseconds in steps.values())
