"""The audit log cannot be flooded, nor made to show lines that nobody wrote."""

from __future__ import annotations

from functools import partial

from structlog.testing import capture_logs

from korvet.security.audit import MOST_CHARACTERS, MOST_LINES_A_SECOND, Audit, escaped


def test_a_name_with_line_ends_and_escape_sequences_is_one_harmless_text() -> None:
    assert escaped("a\nroot logged in\x1b[2J\u202e") == "a\\nroot logged in\\x1b[2J\\u202e"
    assert len(escaped("x" * 100_000)) == MOST_CHARACTERS + 3


def test_refusals_beyond_the_bound_are_counted_and_take_no_lines_from_changes() -> None:
    now = 100.0
    with capture_logs() as lines:
        audit = Audit("default", clock=lambda: now)
        for number in range(MOST_LINES_A_SECOND + 5):
            audit.refused(partial(dict, resource=f"t{number}"))
        audit.changed(names=["a\nb", "c" * 1000])
        now = 101.0
        audit.refused(lambda: {"resource": "next"})
    assert [line["event"] for line in lines].count("denied") == MOST_LINES_A_SECOND + 1
    assert lines[-2]["event"] == "changed" and "lines_left_out" not in lines[-2]
    assert lines[-2]["names"] == ["a\\nb", escaped("c" * 1000)]
    assert lines[-1]["lines_left_out"] == 5


def test_failed_logins_beyond_the_bound_take_no_lines_from_logins() -> None:
    with capture_logs() as lines:
        audit = Audit("default", clock=lambda: 100.0)
        for number in range(MOST_LINES_A_SECOND + 5):
            audit.login_failed(user=f"u{number}\n", reason="invalid credentials")
        audit.logged_in(principal="User:alice")
    assert [line["event"] for line in lines] == ["login failed"] * MOST_LINES_A_SECOND + ["logged in"]
    assert (lines[0]["user"], lines[0]["log_level"], lines[-1]["log_level"]) == ("u0\\n", "warning", "info")
