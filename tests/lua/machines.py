"""State machines of hypothesis, run on a server."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TypeVar

import redis
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

M = TypeVar("M", bound=RuleBasedStateMachine)


def bound(machine: type[M], server: redis.Redis, set_clock: Callable[[float], None]) -> type[M]:
    """The machine on a server and its clock."""
    return type(f"Bound{machine.__name__}", (machine,), {"server": server, "set_clock": staticmethod(set_clock)})


def run_machine(machine: type[RuleBasedStateMachine], *, examples: int, steps: int) -> None:
    """Hypothesis runs the same cases each time, unless KORVET_MODEL_EXAMPLES asks for a number of new ones."""
    wanted = os.environ.get("KORVET_MODEL_EXAMPLES")
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=int(wanted or examples),
            stateful_step_count=steps,
            derandomize=wanted is None,
            database=None,
            deadline=None,
            report_multiple_bugs=False,
            suppress_health_check=list(HealthCheck),
        ),
    )
