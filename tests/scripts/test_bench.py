"""scripts/bench runs from start to end and measures a value for every line, even with a small load."""

import json
import subprocess
import sys
from functools import partial
from pathlib import Path

import psutil
import pytest

from scripts.benchmark import calls, growth, idle, targets, way
from scripts.benchmark.__main__ import starters
from scripts.benchmark.measures import measures
from tests.api.data import produced, records
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
    command = [sys.executable, "-m", "scripts.benchmark", "--rounds", "1", "--seconds", "0.5"]
    done = subprocess.run(
        [*command, "--only", ",".join(GROUPS), "--json", str(written)],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=HANGS_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(written.read_text())
    values = found["values"]
    expected = {f"{m.name}.{line.key}" for m in measures(0.5) if m.group in GROUPS for line in m.lines}
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
def test_each_korvet_is_measured_with_the_named_number_of_workers(name: str, tmp_path: Path) -> None:
    (start,) = starters([name], before=ROOT, workers=2)
    with start(tmp_path) as target:
        commands = [process.cmdline() for process in psutil.Process(target.pids[0]).children(recursive=True)]
    assert sum("korvet.server.processes.worker" in command for command in commands) == 2


@pytest.mark.parametrize(
    ("job", "more", "measured"),
    [
        ({"job": "joining", "sizes": [3]}, "", {"join_3_s", "one_more_3_s"}),
        (
            {"job": "group_costs", "sizes": [3], "counts": [5]}, "redis_url",
            {"group_5_bytes", "offset_bytes", "member_3_bytes", "heartbeat_0_us", "heartbeat_5_us",
             "heartbeat_of_3_us"},
        ),
        ({"job": "settling", "sizes": [3]}, "", {"settle_3_s", "heartbeat_of_3_ms"}),
        ({"job": "consumer_costs", "sizes": [3]}, "redis_url", {"heartbeat_of_3_us"}),
        (
            {"job": "partitions", "count": 3}, "",
            {"create_ms", "metadata_ms", "produce_us", "fetch_ms", "fetch_end_ms"},
        ),
        (
            {"job": "connections", "count": 2, "seconds": 0.1}, "pids",
            {"idle_kib", "busy_kib", "beside_ms", "requests_per_s"},
        ),
        ({"job": "first_reads", "offset": 0, "time_ms": 0}, "topic", {"fetch_ms", "again_ms", "by_time_ms"}),
        (
            {"job": "neighbours", "seconds": 0.2, "value_bytes": 1, "producers": 1}, "",
            {"count", "heartbeat_p50_ms", "heartbeat_p99_ms", "produce_p50_ms", "produce_p99_ms", "fetch_p50_ms",
             "fetch_p99_ms"},
        ),
        *(
            (
                {"job": "shares", "consumers": 2, "records": 1, "acknowledgement": acknowledgement, "seconds": 5},
                "topic", {"count", "records_per_s"},
            )
            for acknowledgement in ("implicit", "explicit")
        ),
        (
            {"job": "share_latency", "seconds": 0.1, "rate": 100, "consumers": 2}, "topic",
            {"count", "p50_ms", "p99_ms"},
        ),
        (
            {"job": "share_waiters", "consumers": 2, "seconds": 0.1}, "topic redis_url",
            {"idle_calls_per_s", "calls_per_append"},
        ),
    ],
    ids=lambda value: value["job"] if isinstance(value, dict) else "",
)  # fmt: skip
def test_worker_measures_all_that_its_job_tells(
    job: dict[str, object], more: str, measured: set[str], broker: KorvetServer
) -> None:
    known = {"redis_url": f"unix://{broker.embedded_socket}", "pids": [broker.pid], "topic": created(broker.port)}
    if job["job"] == "shares":
        produced(broker.port, str(known["topic"]), records(), records())
    told = {**job, "address": broker.bootstrap, **{name: known[name] for name in more.split()}}
    done = subprocess.run(
        [sys.executable, "-m", "scripts.benchmark.worker", json.dumps(told)],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=HANGS_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)["result"]
    assert set(found) == measured
    # The memory of so few things is lost among other changes of a process's memory, and waiting costs no call.
    assert all(value > 0 for name, value in found.items() if not name.endswith(("_bytes", "_kib", "calls_per_s")))


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


def test_calls_of_the_floor_and_of_korvet_are_counted_on_every_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "BATCHES", 3)
    monkeypatch.setattr(calls, "jobs", partial(calls.jobs, batches=3, members=2))
    monkeypatch.setattr(calls, "LINES", [line._replace(turns=5) for line in calls.LINES])
    table = calls.run([targets.korvet], 1, lambda _: None)
    assert [row[0] for row in table.rows] == [line.name for line in calls.LINES]
    assert all(float(count) > 0 for row in table.rows for cell in row[-4:] for count in cell.split(", "))
