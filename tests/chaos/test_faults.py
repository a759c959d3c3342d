"""A short run of every fault, with real clients at work; `scripts/chaos` runs them for longer."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from scripts.chaosrun.faults import FAULTS, Fault
from scripts.chaosrun.run import Shown, staged

ROOT = Path(__file__).parents[2]
# As long as front-ends of a busy machine may be away together.
SESSION_TIMEOUT_MS = 10_000
# About how long each acts; what is not named does what it does once.
SECONDS = {"frontends": 12.0, "rebalance": 5.0, "slots": 10.0}
ONCE = 1.0

Play = Callable[[Fault, float], Shown]


def _faults(topology: str) -> list[Fault]:
    return [fault for fault in FAULTS if fault.topology == topology]


def _name(fault: Fault) -> str:
    return fault.name


@pytest.fixture(scope="module")
def single() -> Iterator[Play]:
    with staged("single", kind="valkey", seed=1, session_timeout_ms=SESSION_TIMEOUT_MS) as play:
        yield play


@pytest.fixture(scope="module")
def cluster() -> Iterator[Play]:
    with staged("cluster", kind="valkey", seed=1, session_timeout_ms=SESSION_TIMEOUT_MS) as play:
        yield play


@pytest.mark.parametrize("fault", _faults("single"), ids=_name)
def test_clients_lose_nothing_by(fault: Fault, single: Play) -> None:
    _play(fault, single)


@pytest.mark.parametrize("fault", _faults("cluster"), ids=_name)
def test_clients_lose_nothing_on_a_cluster_by(fault: Fault, cluster: Play) -> None:
    _play(fault, cluster)


def _play(fault: Fault, play: Play) -> None:
    shown = play(fault, SECONDS.get(fault.name, ONCE))
    assert {claim: found for claim, found in shown.violations.items() if found} == {}, shown.did
    assert shown.deliveries > shown.records > 0
    assert shown.commits > 0


def test_the_command_fails_a_sentinel_s_primary_over_and_shows_what_it_found() -> None:
    command = [
        sys.executable,
        "-m",
        "scripts.chaosrun",
        "--fault",
        "sentinel",
        "--redis",
        "redis",
        "--session-ms",
        str(SESSION_TIMEOUT_MS),
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr
    row = next(line for line in done.stdout.splitlines() if line.startswith("│ sentinel"))
    assert row.endswith(" 0 │")
