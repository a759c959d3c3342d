"""The audit log cannot be flooded, nor blinded by others, nor made to show lines that nobody wrote."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from structlog.testing import capture_logs

from korvet.security.audit import MOST_CHARACTERS, MOST_LINES_A_SECOND, Audit, escaped

ADMIN: dict[str, Any] = {"principal": "User:admin", "host": "10.0.0.1"}
WAY: dict[str, Any] = {"listener": "outside", "mechanism": "PLAIN", "reason": "invalid credentials"}


def of(lines: Sequence[Mapping[str, Any]], name: str) -> int:
    """The lines about a principal or user."""
    return sum(name in (line.get("principal"), line.get("user")) for line in lines)


def test_a_name_with_line_ends_and_escape_sequences_is_one_harmless_text() -> None:
    assert escaped("a\nroot logged in\x1b[2J\u202e") == "a\\nroot logged in\\x1b[2J\\u202e"
    assert len(escaped("x" * 100_000)) == MOST_CHARACTERS + 3


def test_refusals_beyond_the_bound_are_counted_and_take_no_lines_from_others() -> None:
    now = 100.0
    with capture_logs() as lines:
        audit = Audit("default", clock=lambda: now)
        for number in range(MOST_LINES_A_SECOND + 5):
            audit.refused("User:mallory", "10.0.0.9", partial(dict, resource=f"t{number}"))
        audit.refused("User:alice", "10.0.0.9", dict)
        audit.changed(**ADMIN, outcome="done", names=["a\nb", "c" * 1000])
        now = 101.0
        audit.refused("User:mallory", "10.0.0.9", lambda: {"resource": "next"})
    assert of(lines, "User:mallory") == MOST_LINES_A_SECOND + 1
    assert [line["outcome"] for line in lines[-3:]] == ["denied", "done", "denied"]
    assert lines[-2]["names"] == ["a\\nb", escaped("c" * 1000)] and "lines_left_out" not in lines[-2]
    assert lines[-1]["lines_left_out"] == 5


def test_failed_changes_of_one_client_hide_no_change_of_another_nor_its_own() -> None:
    """Attack: a client with one right makes changes fail, so that nobody sees what is changed meanwhile."""
    with capture_logs() as lines:
        audit = Audit("default", clock=lambda: 100.0)
        for _ in range(500):
            audit.changed(principal="User:mallory", host="10.0.0.9", outcome="failed")
        for _ in range(20):
            audit.changed(**ADMIN, outcome="done", is_kept=True)
        audit.changed(principal="User:mallory", host="10.0.0.9", outcome="done")
    assert of(lines, "User:admin") == 20
    assert of(lines, "User:mallory") == MOST_LINES_A_SECOND + 1


def test_no_change_of_security_is_left_out() -> None:
    with capture_logs() as lines:
        audit = Audit("default", clock=lambda: 100.0)
        for _ in range(10 * MOST_LINES_A_SECOND):
            audit.changed(**ADMIN, outcome="done", is_kept=True)
    assert len(lines) == 10 * MOST_LINES_A_SECOND


def test_failed_logins_of_strangers_hide_none_of_a_user() -> None:
    """Attack: names that nobody has, from the very address of the user, and from a thousand others."""
    with capture_logs() as lines:
        audit = Audit("default", clock=lambda: 100.0)
        for number in range(3_000):
            audit.login_failed(user=f"u{number}\n", host=f"10.0.{number % 2000}", **WAY)
        for number in range(500):
            audit.login_failed(user=f"v{number}", host="10.0.0.1", **WAY)
        for _ in range(MOST_LINES_A_SECOND):
            audit.login_failed(user="admin", host="10.0.0.1", is_known=True, **WAY)
        audit.logged_in(**ADMIN, listener="outside", mechanism="PLAIN")
    assert of(lines, "admin") == MOST_LINES_A_SECOND and of(lines, "User:admin") == 1
    assert sum(line.get("user", "").startswith("v") for line in lines) <= MOST_LINES_A_SECOND
    assert (lines[0]["user"], lines[0]["log_level"], lines[0]["outcome"]) == ("u0\\n", "warning", "failed")
    assert (lines[-1]["event"], lines[-1]["log_level"], lines[-1]["outcome"]) == ("logged in", "info", "done")


def test_a_thousand_sources_a_second_have_budgets_of_their_own_and_the_others_share_one() -> None:
    now = 100.0
    with capture_logs() as lines:
        audit = Audit("default", clock=lambda: now)
        for number in range(5_000):
            audit.refused("User:ANONYMOUS", f"10.0.0.{number}", dict)
        assert len(lines) == 1000 + MOST_LINES_A_SECOND
        now = 101.0
        for number in range(1_100):
            audit.refused("User:ANONYMOUS", f"10.1.0.{number}", dict)
    assert sum(line.get("lines_left_out", 0) for line in lines) == 5_000 - 1000 - MOST_LINES_A_SECOND
