"""The lags of the last hour: one number a minute, and a bound that groups on purpose cannot use up."""

from __future__ import annotations

from korvet.metrics.lags import MOST_NUMBERS, MOST_TOPICS, Lags

ROOM_OF_TWO = 2_000


def topics_of(lags: Lags, group: str, namespace: str = "default") -> dict[str, list[int | None]]:
    told = lags.of_group(namespace, group)
    assert told is not None
    return dict(told["topics"])


def test_a_minute_has_one_number_and_an_hour_sixty() -> None:
    lags = Lags()
    for seconds in range(0, 2 * 3600, 10):
        lags.note("default", {("g", "t"): seconds}, float(seconds))
    told = lags.of_group("default", "g")
    assert told is not None
    assert told["times"] == [float(3600 + 60 * minute) for minute in range(60)]
    assert told["topics"] == {"t": [3600 + 60 * minute for minute in range(60)]}


def test_group_that_was_not_seen_has_gaps_until_an_hour_has_passed() -> None:
    lags = Lags()
    lags.note("default", {("g", "t"): 1}, 0.0)
    lags.note("default", {("g", "t"): 2, ("late", "t"): 3}, 60.0)
    lags.note("default", {("late", "t"): 4}, 120.0)
    assert topics_of(lags, "g") == {"t": [1, 2, None]}
    assert topics_of(lags, "late") == {"t": [None, 3, 4]}
    for minute in range(3, MOST_NUMBERS + 1):
        lags.note("default", {("late", "t"): 4}, 60.0 * minute)
    assert topics_of(lags, "g") == {"t": [2] + [None] * 59}
    lags.note("default", {("late", "t"): 4}, 60.0 * (MOST_NUMBERS + 1))
    assert topics_of(lags, "g") == {}


def test_new_groups_push_out_those_that_are_gone_and_none_that_is_there() -> None:
    lags = Lags(ROOM_OF_TWO)
    lags.note("default", {("a", "t"): 1, ("b", "t"): 1, ("c", "t"): 1}, 0.0)
    assert [bool(topics_of(lags, group)) for group in "abc"] == [True, True, False]
    lags.note("default", {("x", "t"): 1, ("b", "t"): 1, ("y", "t"): 1}, 60.0)
    assert [bool(topics_of(lags, group)) for group in "abxy"] == [False, True, True, False]


def test_group_is_kept_whole_or_not_at_all() -> None:
    lags = Lags()
    few = {("few", f"t{number}"): 1 for number in range(MOST_TOPICS)}
    many = {("many", f"t{number}"): 1 for number in range(MOST_TOPICS + 1)}
    lags.note("default", few | many, 0.0)
    assert len(topics_of(lags, "few")) == MOST_TOPICS
    assert topics_of(lags, "many") == {}


def test_namespaces_share_the_bytes_and_end_an_hour_after_their_last_number() -> None:
    lags = Lags(ROOM_OF_TWO)
    lags.note("one", {("a", "t"): 1, ("b", "t"): 1}, 0.0)
    lags.note("other", {("c", "t"): 1}, 60.0)
    assert topics_of(lags, "c", "other") == {}
    lags.note("other", {("c", "t"): 1}, 3600.0)
    assert topics_of(lags, "c", "other") == {"t": [1]}
    assert lags.of_group("one", "a") is None


def test_clock_that_was_set_back_begins_anew() -> None:
    lags = Lags()
    lags.note("default", {("g", "t"): 1}, 600.0)
    lags.note("default", {("g", "t"): 2}, 300.0)
    told = lags.of_group("default", "g")
    assert told is not None
    assert (told["times"], told["topics"]) == ([300.0], {"t": [2]})
