"""AlterUserScramCredentials and DescribeUserScramCredentials, and ``korvet users`` on the same credentials."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tests.api.raw import ask, unique
from tests.support.broker import KorvetServer, running_broker
from tests.support.ported import kafka

SHA_256, SHA_512, UNKNOWN = 1, 2, 0
WITHIN_S = 60.0


@pytest.fixture(scope="module")
def broker() -> Iterator[KorvetServer]:
    with running_broker() as broker:
        yield broker


def deletion(name: str, mechanism: int = SHA_256) -> dict[str, Any]:
    return {"name": name, "mechanism": mechanism}


def upsertion(name: str, mechanism: int = SHA_256, iterations: int = 4096) -> dict[str, Any]:
    return {**deletion(name, mechanism), "iterations": iterations, "salt": b"salt", "salted_password": b"salted"}


def altered(broker: KorvetServer, *changes: dict[str, Any]) -> dict[str, tuple[str, str | None]]:
    """Error and message of each user; changes with iterations are upsertions."""
    asked = {
        "deletions": [one for one in changes if "iterations" not in one],
        "upsertions": [one for one in changes if "iterations" in one],
    }
    answer = ask(broker.port, "alter_user_scram_credentials", 0, **asked)
    outcomes = {one["user"]: (one["error_code"], one["error_message"]) for one in answer["results"]}
    assert len(outcomes) == len(answer["results"])
    return outcomes


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


@kafka(
    "AlterUserScramCredentialsRequestTest.testAlterNothing",
    "AlterUserScramCredentialsRequestTest.testAlterEmptyUser",
    "AlterUserScramCredentialsRequestTest.testAlterUnknownMechanism",
    "AlterUserScramCredentialsRequestTest.testAlterTooFewIterations",
    "AlterUserScramCredentialsRequestTest.testAlterTooManyIterations",
)
def test_unacceptable_changes_are_refused_each_with_its_reason(broker: KorvetServer) -> None:
    assert altered(broker) == {}
    empty = ("UNACCEPTABLE_CREDENTIAL", "Username must not be empty")
    unknown = ("UNSUPPORTED_SASL_MECHANISM", "Unknown SCRAM mechanism")
    assert altered(broker, deletion("")) == {"": empty}
    assert altered(broker, upsertion("")) == {"": empty}
    assert altered(broker, deletion(""), deletion(""), upsertion("")) == {"": empty}
    assert altered(broker, deletion("a", UNKNOWN), upsertion("b", 56)) == {"a": unknown, "b": unknown}
    known = [deletion("a", UNKNOWN), deletion("a"), upsertion("b", 10), upsertion("b"), upsertion("c", UNKNOWN)]
    assert altered(broker, *known) == dict.fromkeys("abc", unknown)
    outcomes = altered(broker, upsertion("few", iterations=1), upsertion("many", iterations=2**31 - 1))
    assert outcomes == {
        "few": ("UNACCEPTABLE_CREDENTIAL", "Too few iterations"),
        "many": ("UNACCEPTABLE_CREDENTIAL", "Too many iterations"),
    }


@kafka("AlterUserScramCredentialsRequestTest.testDeleteSomethingThatDoesNotExist")
def test_deletion_of_nobody_is_not_found_and_other_users_are_altered(broker: KorvetServer) -> None:
    here, nobody = unique("here"), unique("nobody")
    outcomes = altered(broker, deletion(nobody), upsertion(here))
    message = "Attempt to delete a user credential that does not exist"
    assert outcomes == {nobody: ("RESOURCE_NOT_FOUND", message), here: ("NONE", None)}
    assert described(broker, here) == {here: {SHA_256: 4096}}


@kafka("AlterUserScramCredentialsRequestTest.testAlterSameThingTwice")
def test_user_named_twice_is_not_altered(broker: KorvetServer) -> None:
    one, other = unique("one"), unique("other")
    twice = ("DUPLICATE_RESOURCE", "A user credential cannot be altered twice in the same request")
    altered(broker, upsertion(one))
    assert altered(broker, deletion(one), upsertion(one, SHA_512)) == {one: twice}
    assert altered(broker, upsertion(other), upsertion(other, SHA_512), deletion(one)) == {
        other: twice,
        one: ("NONE", None),
    }
    assert described(broker, one, other) == dict.fromkeys([one, other], "RESOURCE_NOT_FOUND")
    both = [change(name) for change in (deletion, upsertion) for name in (one, other)]
    altered(broker, *both[2:])
    assert altered(broker, *both) == {one: twice, other: twice}


@kafka(
    "AlterUserScramCredentialsRequestTest.testAlterAndDescribe",
    "DescribeUserScramCredentialsRequestTest.testDescribeNothing",
    "DescribeUserScramCredentialsRequestTest.testDescribeWithNull",
    "DescribeUserScramCredentialsRequestTest.testDescribeSameUserTwice",
    "DescribeUserScramCredentialsRequestTest.testUnknownUser",
)
def test_users_are_described_by_mechanisms_and_iterations_alone(broker: KorvetServer) -> None:
    one, other = unique("one"), unique("other")
    altered(broker, upsertion(one, SHA_256, 4096), upsertion(other, SHA_512, 8192))
    altered(broker, upsertion(one, SHA_512, 16384))
    expected = {one: {SHA_256: 4096, SHA_512: 16384}, other: {SHA_512: 8192}}
    assert described(broker, one, other) == expected
    assert expected.items() <= described(broker).items()
    assert described(broker, one, one) == {one: "DUPLICATE_RESOURCE"}
    altered(broker, deletion(one))
    assert described(broker, one) == {one: {SHA_512: 16384}}


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
