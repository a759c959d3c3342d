"""State machines of hypothesis, run on a server."""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable
from typing import TypeVar

import redis
from hypothesis import HealthCheck, seed, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

M = TypeVar("M", bound=RuleBasedStateMachine)
WANTED = os.environ.get("KORVET_MODEL_EXAMPLES")


def bound(machine: type[M], server: redis.Redis, set_clock: Callable[[float], None]) -> type[M]:
    """The machine on a server and its clock, with cases of the server's kind."""
    made = type(f"Bound{machine.__name__}", (machine,), {"server": server, "set_clock": staticmethod(set_clock)})
    kind = server.info("server").get("server_name", "redis")
    return made if WANTED else seed(zlib.crc32(kind.encode()))(made)


def run_machine(machine: type[RuleBasedStateMachine], *, examples: int, steps: int) -> None:
    """Hypothesis runs the same cases each time, and other ones on Redis than on Valkey.

    KORVET_MODEL_EXAMPLES asks for a number of new ones.
    """
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=int(WANTED or examples),
            stateful_step_count=steps,
            derandomize=WANTED is None,
            database=None,
            deadline=None,
            report_multiple_bugs=False,
            suppress_health_check=list(HealthCheck),
        ),
    )
