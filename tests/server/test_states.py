"""Every state of a connection, with every pause: what it may do, and where it can go."""

from __future__ import annotations

import operator
from itertools import product

import pytest

from korvet.server.conversation.states import LOGINS, NEXT, Conversation, Event, Pause, State

STARTS = (State.HEALTH_CHECK, State.ENTERING, State.LOGIN, State.OPEN)
BOTH = (False, True)


NONE = Pause(0)


def of(state: State, pauses: Pause = NONE, *, is_reading: bool = True) -> Conversation:
    conversation = Conversation(state)
    conversation.is_reading, conversation.pauses = is_reading, pauses
    conversation.resume(NONE)
    return conversation


def reached() -> list[tuple[State, Pause]]:
    """What events and pauses can make of a new connection, in any order."""
    seen = dict.fromkeys((state, NONE) for state in STARTS)
    new = list(seen)
    while new:
        state, pauses = new.pop()
        for step in (*Event, *Pause):
            for ends in BOTH:
                one = of(state, pauses)
                if isinstance(step, Event):
                    one.on(step)
                elif ends:
                    one.resume(step)
                else:
                    one.pause(step)
                if (found := (one.state, one.pauses)) not in seen:
                    seen[found] = None
                    new.append(found)
    return list(seen)


REACHED = reached()


def test_every_state_is_reached_and_ends() -> None:
    assert {state for state, _ in REACHED} == set(State) == set(NEXT)
    for state in set(State) - {State.ENDED}:
        assert NEXT[state][Event.END] is State.ENDED
        assert state.is_closing or NEXT[state][Event.CLOSE] is State.CLOSING


def test_connection_that_was_refused_or_drains_or_closes_takes_nothing_more() -> None:
    for state, event in product((State.REFUSED, State.DRAINING, State.CLOSING, State.ENDED), Event):
        after = NEXT[state].get(event, state)
        assert not state.takes and not after.takes and after.is_closing >= state.is_closing


def test_only_a_login_lets_its_client_in_or_refuses_it() -> None:
    assert {state for state, after in NEXT.items() if State.OPEN in after.values()} == {State.ENTERING, *LOGINS}
    assert {state for state, after in NEXT.items() if State.REFUSED in after.values()} == set(LOGINS)


@pytest.mark.parametrize("pause", Pause)
def test_pause_stops_work_and_its_end_lets_it_go_on(pause: Pause) -> None:
    for state, pauses in REACHED:
        one = of(state, pauses)
        before = decisions(one)
        one.pause(pause)
        assert all(map(operator.le, decisions(one), before))
        one.resume(pause)
        if pause not in pauses:
            assert decisions(one) == before
    working = of(State.OPEN)
    working.pause(pause)
    assert working.takes == (pause in Pause.QUEUE | Pause.UNREAD)
    assert working.may_read(has_room=True, is_inside_large_frame=False) == working.takes
    assert decisions(working) != decisions(of(State.OPEN))


def decisions(one: Conversation) -> tuple[bool, ...]:
    reads = (one.may_read(has_room=room, is_inside_large_frame=inside) for room, inside in product(BOTH, BOTH))
    return (one.takes, one.begins, one.answers, *reads)


def test_connection_without_pauses_takes_reads_and_answers_what_its_state_allows() -> None:
    for state in State:
        one = of(state, is_reading=False)
        assert one.takes == state.takes
        assert one.may_read(has_room=True, is_inside_large_frame=False) == state.takes
        assert not one.may_read(has_room=False, is_inside_large_frame=False)
        assert one.begins == one.answers == (not state.is_closing)


def test_large_frame_that_has_its_turn_arrives_wholly() -> None:
    """Others wait for its memory, so neither a throttle nor a bound stops it; but it begins only if there is room."""
    for (state, pauses), room, is_reading in product(REACHED, BOTH, BOTH):
        if state.takes:
            one = of(state, pauses, is_reading=is_reading)
            may_read = one.may_read(has_room=room, is_inside_large_frame=True)
            assert may_read == ((is_reading or room) and Pause.LARGE_FRAME not in pauses)


def test_drain_waits_for_nothing_but_its_client() -> None:
    for state, pauses in REACHED:
        if state is State.DRAINING:
            assert of(state, pauses).begins == (Pause.UNREAD not in pauses)
    reading, late = of(State.OPEN, Pause.UNREAD), of(State.DRAINING)
    reading.on(Event.DRAIN)
    late.pause(Pause.UNREAD)
    assert not reading.begins and not late.begins
    for left in (reading, late, of(State.OPEN, Pause.UNREAD)):
        left.on(Event.LOSE)
        assert left.begins and not left.takes


def test_connection_that_closes_reads_as_before_so_that_its_last_answers_arrive() -> None:
    for state, is_reading, room in product((State.CLOSING, State.ENDED), BOTH, BOTH):
        one = of(state, is_reading=is_reading)
        assert one.may_read(has_room=room, is_inside_large_frame=room) == is_reading
