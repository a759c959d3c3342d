"""``korvet users`` on the credentials that DescribeUserScramCredentials shows."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tests.api.raw import ask, unique
from tests.support.broker import KorvetServer, running_broker

SHA_512 = 2
WITHIN_S = 60.0


@pytest.fixture(scope="module")
def broker() -> Iterator[KorvetServer]:
    with running_broker() as broker:
        yield broker


def described(broker: KorvetServer, *names: str) -> dict[str, Any]:
    """The error of each user, or mechanism -> iterations; every user without a name."""
    users = [{"name": name} for name in names] or None
    answer = ask(broker.port, "describe_user_scram_credentials", 0, users=users)
    assert answer["error_code"] == "NONE"
    return {
        one["user"]: {info["mechanism"]: info["iterations"] for info in one["credential_infos"]}
        if one["error_code"] == "NONE"
        else one["error_code"]
        for one in answer["results"]
    }


def run_users(broker: KorvetServer, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "korvet.cli", "users", *arguments, "--data-dir", str(broker.data_dir)],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=WITHIN_S,
    )


def test_first_user_is_added_listed_and_removed_on_the_command_line(broker: KorvetServer) -> None:
    name = unique("admin")
    added = run_users(broker, "add", name, "--iterations", "8192", stdin="secret\n")
    assert (added.returncode, added.stderr) == (0, "")
    assert described(broker, name) == {name: {SHA_512: 8192}}
    listed = json.loads(run_users(broker, "list", "--json").stdout)
    assert {"user": name, "mechanism": "SCRAM-SHA-512", "iterations": 8192} in listed
    assert run_users(broker, "remove", name, "--execute").returncode == 0
    assert described(broker, name) == {name: "RESOURCE_NOT_FOUND"}
    again = run_users(broker, "remove", name, "--execute")
    assert (again.returncode, name in again.stderr) == (1, True)


def test_empty_password_is_refused(broker: KorvetServer) -> None:
    refused = run_users(broker, "add", unique(), stdin="\n")
    assert refused.returncode == 1 and "may not be empty" in refused.stderr
