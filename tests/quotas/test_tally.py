"""Connections that all front-ends count together, as one of them knows them."""

from __future__ import annotations

from korvet.quotas.tally import KNOWN_S, Tally


class Visitor:
    """A connection that leaves its tally when it is closed."""

    def __init__(self, tally: Tally, name: str = "a") -> None:
        self.is_closed = False
        self._tally, self._name = tally, name
        tally.increment(name)
        tally.register(name, self)

    def abort(self) -> None:
        assert not self.is_closed
        self.is_closed = True
        self._tally.decrement(self._name, self)


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


class Signals:
    count = 0

    def __call__(self) -> None:
        self.count += 1


def tally(most: int | None = 3, clock: Clock | None = None) -> Tally:
    made = Tally("ip", lambda _: most, clock or Clock())
    made.on_change = Signals()
    return made


def exchange(one: Tally, other_connections: int) -> None:
    """Tell the changes, and hear of the others."""
    one.heard(dict.fromkeys(one.changes(100), other_connections))


def test_front_end_alone_decides_by_its_own_and_sends_nothing() -> None:
    one = Tally("ip", lambda _: 2)
    guests = [Visitor(one), Visitor(one)]
    assert one.is_over("a", more=1) and not one.is_over("a")
    guests[0].abort()
    assert not one.is_over("a", more=1) and not one.has_changes


def test_connections_of_others_count_once_they_are_heard_of() -> None:
    one = tally()
    Visitor(one)
    assert not one.is_over("a", more=1)
    exchange(one, 2)
    assert one.is_over("a", more=1) and not one.is_over("b", more=1)


def test_newest_connections_beyond_the_limit_are_closed_and_older_ones_stay() -> None:
    one = tally()
    first = Visitor(one)
    exchange(one, 0)
    later = [Visitor(one), Visitor(one)]
    exchange(one, 1)
    assert [guest.is_closed for guest in (first, *later)] == [False, False, True]
    exchange(one, 3)
    assert not first.is_closed and not later[0].is_closed, "the others came later"
    assert one.is_over("a")


def test_connection_that_came_during_a_call_closes_no_older_one() -> None:
    one = tally()
    first = Visitor(one)
    told = one.changes(10)
    later = Visitor(one)
    one.heard(dict.fromkeys(told, 2))
    assert not first.is_closed and not later.is_closed
    exchange(one, 2)
    assert not first.is_closed and later.is_closed


def test_lowered_limit_closes_nobody() -> None:
    limits = [3]
    one = Tally("ip", lambda _: limits[0], Clock())
    one.on_change = Signals()
    guests = [Visitor(one) for _ in range(3)]
    exchange(one, 0)
    limits[0] = 1
    one.note_all()
    exchange(one, 0)
    assert not any(guest.is_closed for guest in guests)


def test_refusal_calls_again_and_what_was_heard_is_soon_forgotten() -> None:
    clock = Clock()
    one = tally(clock=clock)
    Visitor(one)
    exchange(one, 2)
    assert one.changes(10) == {}
    assert one.is_over("a", more=1)
    one.heard(dict.fromkeys(one.changes(10), 0))
    assert not one.is_over("a", more=1)
    exchange(one, 2)
    clock.now += KNOWN_S + 1
    assert not one.is_over("a", more=1)


def test_what_was_not_heard_is_sent_again_with_the_number_of_then() -> None:
    one = tally()
    guest = Visitor(one)
    told = one.changes(10)
    assert told == {"a": 1} and not one.has_changes
    one.unheard(told)
    guest.abort()
    assert one.changes(10) == {"a": 0}
    one.heard({"a": 100})


def test_guests_that_left_are_not_kept_while_redis_is_away() -> None:
    """Attack: connections come and go during an outage."""
    one = tally(1000)
    for _ in range(1000):
        Visitor(one).abort()
        one.unheard(one.changes(10))
    assert not one._fresh and not one._published and not one.has_own


def test_names_are_bounded_while_redis_is_away() -> None:
    """Attack: connections from very many addresses come and go during an outage."""
    one = tally(1)
    stays, leaves = Visitor(one, "stays"), Visitor(one, "leaves")
    exchange(one, 0)
    lost = one.changes(100)
    for number in range(20_000):
        Visitor(one, f"a{number}").abort()
        assert not one.is_over(f"b{number}", more=1) and one.is_over(f"c{number}", more=2)
    leaves.abort()
    one.unheard(lost)
    assert len(one._changed) <= 10_001
    assert not one._fresh and not one._published and len(one._stored) == 2
    told: dict[str, int] = {}
    while found := one.changes(100):
        told.update(found)
        one.heard(dict.fromkeys(found, 0))
    assert told["leaves"] == 0 and "stays" not in told and one._stored == {"stays"}
    assert not stays.is_closed


def test_name_that_redis_may_know_is_sent_until_it_heard_of_its_end() -> None:
    one = tally()
    guest = Visitor(one)
    told = one.changes(10)
    guest.abort()
    one.unheard(told)
    for _ in range(3):
        assert one.changes(10) == {"a": 0}
        one.unheard({"a": 0})
    exchange(one, 0)
    assert not one._stored and not one.has_changes


def test_limits_are_divided_while_redis_is_away() -> None:
    one = tally(5)
    Visitor(one)
    exchange(one, 4)
    one.parts = 2
    assert [one.most("a"), one.is_over("a", more=2), one.is_over("a", more=3)] == [3, False, True]
    one.parts = 1
    assert one.is_over("a", more=1)


def test_names_without_a_limit_are_not_sent() -> None:
    one = tally(None)
    Visitor(one).abort()
    assert not one.has_changes and not one.is_over("a", more=10**9)


def test_others_that_were_heard_of_are_bounded() -> None:
    """Attack: connections from very many addresses."""
    clock = Clock()
    one = tally(clock=clock)
    for number in range(30):
        guests = [Visitor(one, f"{number}-{at}") for at in range(1000)]
        one.heard(dict.fromkeys(one.changes(1000), 1))
        for guest in guests:
            guest.abort()
        exchange(one, 0)
        clock.now += 2
    assert len(one._others) == 10_000


def test_names_heard_longest_ago_are_forgotten_for_new_ones() -> None:
    tally = Tally("ip", lambda _name: 1)
    names = [str(number) for number in range(10_001)]
    for name in names:
        tally.heard({name: 1})
    assert [tally.is_over(name, more=1) for name in (names[0], names[1], names[-1])] == [False, True, True]


def test_connections_that_leave_after_their_limit_has_ended_are_sent() -> None:
    limits = {"a": 3}
    one = Tally("tenant", limits.get, Clock())
    one.on_change = Signals()
    guest = Visitor(one)
    exchange(one, 0)
    del limits["a"]
    guest.abort()
    assert one.changes(100) == {"a": 0}
    one.heard({"a": 0})
    Visitor(one)
    assert not one.has_changes, "nobody asks for a name without a limit"
