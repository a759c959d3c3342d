"""A short run of every fault, with real clients at work; `scripts/chaos` makes longer runs."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from scripts.chaosrun.faults import FAULTS, Fault
from scripts.chaosrun.run import Shown, staged

ROOT = Path(__file__).parents[2]
# On a busy machine all front-ends may be away together for this time.
SESSION_TIMEOUT_MS = 15_000
# Nine groups read each record, and the clients of all of them share the processors with other tests.
RECORDS_PER_S = 10.0
# The seconds for which each fault acts, roughly; a fault without a time acts once.
SECONDS = {"frontends": 5.0, "rebalance": 5.0, "slots": 10.0}
ONCE = 1.0

Play = Callable[[Fault, float], Shown]


def _faults(topology: str) -> list[Fault]:
    return [fault for fault in FAULTS if fault.topology == topology]


def _name(fault: Fault) -> str:
    return fault.name


@pytest.fixture(scope="class")
def single() -> Iterator[Play]:
    with staged(
        "single", kind="valkey", seed=1, session_timeout_ms=SESSION_TIMEOUT_MS, records_per_s=RECORDS_PER_S
    ) as play:
        yield play


@pytest.fixture(scope="class")
def cluster() -> Iterator[Play]:
    with staged(
        "cluster", kind="valkey", seed=1, session_timeout_ms=SESSION_TIMEOUT_MS, records_per_s=RECORDS_PER_S
    ) as play:
        yield play


# A class's stage ends before the next one begins, because two cores cannot run two at once.
class TestOneServer:
    @pytest.mark.parametrize("fault", _faults("single"), ids=_name)
    def test_clients_lose_nothing_during(self, fault: Fault, single: Play) -> None:
        _play(fault, single)


@pytest.mark.all
class TestCluster:
    @pytest.mark.parametrize("fault", _faults("cluster"), ids=_name)
    def test_clients_lose_nothing_on_a_cluster_during(self, fault: Fault, cluster: Play) -> None:
        _play(fault, cluster)


def _play(fault: Fault, play: Play) -> None:
    shown = play(fault, SECONDS.get(fault.name, ONCE))
    assert {claim: found for claim, found in shown.violations.items() if found} == {}, shown.did
    assert shown.deliveries > shown.records > 0
    assert shown.commits > 0


@pytest.mark.all
def test_chaos_command_hands_a_sentinel_primary_over_and_back_then_kills_it_and_reports_both() -> None:
    names = [fault.name for fault in _faults("sentinel")]
    faults = [word for name in names for word in ("--fault", name)]
    sessions = ["--session-ms", str(SESSION_TIMEOUT_MS)]
    done = subprocess.run(
        [sys.executable, "-m", "scripts.chaosrun", *faults, "--redis", "redis", *sessions],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=560,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    for name in names:
        row = next(line for line in done.stdout.splitlines() if line.startswith(f"│ {name}"))
        assert row.endswith(" 0 │")
