"""franz-go's own tests of its client pass here, without logins, and over TLS with logins and access rules."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from korvet.security.protocol import Security
from tests.api.acls import TURNED_ON, everything, set_rules
from tests.kafka.example_builds import franz_go_tests
from tests.kafka.secured import PASSWORD, USER, Fleet, running_fleet

pytestmark = pytest.mark.all

WITHIN_S = 560.0
RECORDS = 10_000
"""franz-go sends 500,000 by itself."""
OF_INTERNAL_TOPICS = ("TestConsumeRegex", "Test848RegexBrokerResolves", "TestConsumeRegexShareSkipsInternal")
"""They look for `__consumer_offsets` among all topics."""
WITHOUT_TLS = "TestIssue769"
"""It has a dialer of its own."""
LOGIN = {"TestSCRAMAuth", "TestSCRAMAuthBadCredentials"}


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with running_fleet(tmp_path_factory.mktemp("franz-go"), TURNED_ON) as fleet:
        set_rules(fleet.broker, *everything(), *(rule._replace(principal=f"User:{USER}") for rule in everything()))
        yield fleet


def outcomes(seeds: str, directory: Path, *left_out: str, **settings: str) -> dict[str, str]:
    """Test -> PASS or SKIP, of all tests but some that are left out.

    :raises AssertionError: if one failed, or did not end.
    """
    program = franz_go_tests()
    env = {**os.environ, "KGO_SEEDS": seeds, "KGO_TEST_RF": "1", "KGO_TEST_RECORDS": str(RECORDS), **settings}
    env |= {"KGO_LOG_LEVEL": "none"}
    command = [program, "-test.v", f"-test.timeout={WITHIN_S:.0f}s", f"-test.skip=^({'|'.join(left_out)})$"]
    done = subprocess.run(
        command, cwd=directory, env=env, capture_output=True, text=True,
        check=False, timeout=WITHIN_S + 20,
    )  # fmt: skip
    listed = subprocess.run([program, "-test.list", "."], capture_output=True, text=True, check=True)
    names = set(re.findall(r"^Test\w+$", listed.stdout, re.MULTILINE)) - set(left_out)
    ended = {name: outcome for outcome, name in re.findall(r"^--- (\w+): (\w+)", done.stdout, re.MULTILINE)}
    failed = sorted(name for name in names if ended.get(name) not in ("PASS", "SKIP"))
    assert not failed, f"{failed}\n{done.stdout[-5000:]}{done.stderr[-3000:]}"
    return ended


def skipped(found: dict[str, str]) -> set[str]:
    return {name for name, outcome in found.items() if outcome == "SKIP"}


def test_clients_without_logins_pass(fleet: Fleet, tmp_path: Path) -> None:
    found = outcomes(fleet.way(Security.PLAINTEXT).bootstrap, tmp_path, *OF_INTERNAL_TOPICS)
    assert len(found) > 100
    assert skipped(found) == LOGIN


def test_clients_with_logins_tls_and_rules_pass(fleet: Fleet, tmp_path: Path) -> None:
    way, left_out = fleet.way(Security.SASL_TLS), (*OF_INTERNAL_TOPICS, WITHOUT_TLS)
    without_tls = fleet.way(Security.SASL_PLAINTEXT).bootstrap
    scram = {"KGO_TEST_SCRAM": f"{USER}:{PASSWORD}", "KGO_TEST_SCRAM_SEEDS": without_tls}
    found = outcomes(way.bootstrap, tmp_path, *left_out, KGO_TEST_TLS=f"ca:{way.ca}", **scram)
    assert len(found) > 100
    assert skipped(found) == set()
