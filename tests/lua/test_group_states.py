"""The table of states and their successors. The test runs in the library, because no call asks for an illegal one."""

from __future__ import annotations

import pytest
import redis

from tests.support.ported import kafka

EMPTY, PREPARING, COMPLETING, STABLE = "Empty", "PreparingRebalance", "CompletingRebalance", "Stable"
DOOR = """
korvet.define({ name = 'test_group_move', args = 'before   after' }, function(_, asked)
  local g = { fields = { state = asked.before }, changed = {}, now = 0 }
  local _, refusal = pcall(group.move, g, asked.after)
  return { g.fields.state, refusal or '' }
end)
"""
"""A function that moves a group from one state to another, and tells the state and the refusal."""


def moved(server: redis.Redis, library: str, before: str, after: str) -> tuple[str, str]:
    server.function_load(library + DOOR, replace=True)
    state, refusal = server.fcall("korvet_test_group_move", 0, before, after)
    return state.decode(), refusal.decode()


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param(EMPTY, PREPARING, marks=kafka("ClassicGroupTest.testStableToPreparingRebalanceTransition")),
        pytest.param(STABLE, PREPARING, marks=kafka("ClassicGroupTest.testStableToPreparingRebalanceTransition")),
        pytest.param(
            COMPLETING, PREPARING, marks=kafka("ClassicGroupTest.testAwaitingRebalanceToPreparingRebalanceTransition")
        ),
        pytest.param(PREPARING, EMPTY, marks=kafka("ClassicGroupTest.testPreparingRebalanceToEmptyTransition")),
        pytest.param(COMPLETING, STABLE, marks=kafka("ClassicGroupTest.testAwaitingRebalanceToStableTransition")),
    ],
)
def test_allowed_state_follows(server: redis.Redis, library: str, before: str, after: str) -> None:
    assert moved(server, library, before, after) == (after, "")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param(EMPTY, STABLE, marks=kafka("ClassicGroupTest.testEmptyToStableIllegalTransition")),
        pytest.param(STABLE, STABLE, marks=kafka("ClassicGroupTest.testStableToStableIllegalTransition")),
        pytest.param(EMPTY, COMPLETING, marks=kafka("ClassicGroupTest.testEmptyToAwaitingRebalanceIllegalTransition")),
        pytest.param(
            PREPARING,
            PREPARING,
            marks=kafka("ClassicGroupTest.testPreparingRebalanceToPreparingRebalanceIllegalTransition"),
        ),
        pytest.param(
            PREPARING, STABLE, marks=kafka("ClassicGroupTest.testPreparingRebalanceToStableIllegalTransition")
        ),
        pytest.param(
            COMPLETING,
            COMPLETING,
            marks=kafka("ClassicGroupTest.testAwaitingRebalanceToAwaitingRebalanceIllegalTransition"),
        ),
    ],
)
def test_forbidden_state_raises_an_error(server: redis.Redis, library: str, before: str, after: str) -> None:
    state, refusal = moved(server, library, before, after)
    assert (state, refusal) == (before, f"a group cannot become {after} from {before}")
