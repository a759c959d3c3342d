"""Lists that pages are cut from: one question for many pages, and never another visitor's answer."""

from __future__ import annotations

from korvet.cli.console.lists import FRESH_S, MOST, MOST_ROWS, Lists, ListsOfVisitor
from tests.console.test_sessions import Clock


def asked(lists: Lists, visitor: str, answer: list[str], *, may_be_kept: bool, rows: int = 1) -> list[str]:
    own = ListsOfVisitor(lists=lists, visitor=visitor, may_be_kept=may_be_kept)
    return list(own.get("topics", lambda: answer, lambda _: rows))


def test_page_that_goes_on_has_the_list_of_the_first_for_a_while() -> None:
    clock = Clock()
    lists = Lists(clock)
    assert asked(lists, "alice", ["old"], may_be_kept=True) == ["old"]
    clock.now += FRESH_S - 1
    assert asked(lists, "alice", ["new"], may_be_kept=True) == ["old"]
    clock.now += 1
    assert asked(lists, "alice", ["new"], may_be_kept=True) == ["new"]


def test_page_that_begins_anew_lists_and_those_after_it_have_its_list() -> None:
    lists = Lists(Clock())
    asked(lists, "alice", ["old"], may_be_kept=True)
    assert asked(lists, "alice", ["new"], may_be_kept=False) == ["new"]
    assert asked(lists, "alice", ["newer"], may_be_kept=True) == ["new"]


def test_visitor_never_has_the_list_of_another_one() -> None:
    lists = Lists(Clock())
    asked(lists, "alice", ["of alice"], may_be_kept=True)
    assert asked(lists, "bob", ["of bob"], may_be_kept=True) == ["of bob"]


def test_lists_of_many_visitors_have_a_bound() -> None:
    lists = Lists(Clock())
    for number in range(MOST + 1):
        asked(lists, f"visitor {number}", ["old"], may_be_kept=True)
    assert asked(lists, "visitor 0", ["new"], may_be_kept=True) == ["new"]
    assert asked(lists, f"visitor {MOST}", ["new"], may_be_kept=True) == ["old"]


def test_large_lists_have_a_bound_and_push_out_the_oldest() -> None:
    lists = Lists(Clock())
    asked(lists, "alice", ["old"], may_be_kept=True, rows=MOST_ROWS // 2)
    asked(lists, "bob", ["old"], may_be_kept=True, rows=MOST_ROWS // 2)
    assert asked(lists, "alice", ["new"], may_be_kept=True) == ["old"]
    asked(lists, "carol", ["old"], may_be_kept=True)
    assert asked(lists, "bob", ["new"], may_be_kept=True) == ["old"]
    assert asked(lists, "alice", ["new"], may_be_kept=True) == ["new"]


def test_list_that_is_too_large_alone_is_not_kept() -> None:
    lists = Lists(Clock())
    asked(lists, "alice", ["old"], may_be_kept=True, rows=MOST_ROWS + 1)
    assert asked(lists, "alice", ["new"], may_be_kept=True) == ["new"]
