"""Steps that repeat: the times at which they run, the log lines about their failures, and the events that end them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import pairwise

import anyio
import pytest
from structlog.testing import capture_logs

from korvet.errors import KorvetError, StoreError, StoreUnavailable
from korvet.store import every as module
from korvet.store.every import every, whenever
from korvet.store.outcomes import outcomes

pytestmark = pytest.mark.anyio


class Steps:
    """Steps with given outcomes, one after another; behind the last step they end the test's task."""

    def __init__(self, *outcomes: Exception | None) -> None:
        self.left: Iterator[Exception | None] = iter(outcomes)
        self.scope = anyio.CancelScope()
        self.taken = 0

    async def step(self) -> None:
        try:
            outcome = next(self.left)
        except StopIteration:
            self.scope.cancel()
            return
        self.taken += 1
        if outcome is not None:
            raise outcome


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RETRY_S", 0.001)


async def said(*outcomes: Exception | None, told: Exception | None = None) -> list[str]:
    """The reasons that the log names for steps with these outcomes; all of the steps are taken."""
    steps = Steps(*outcomes)
    with capture_logs() as lines, steps.scope, anyio.fail_after(10):
        await every(0.001, steps.step, "it failed", has_reported=lambda error: error is told)
    assert steps.taken == len(outcomes)
    assert all(line["event"] == "it failed" for line in lines)
    return [line["reason"] for line in lines]


async def test_failure_is_logged_once_for_each_kind_until_a_step_succeeds() -> None:
    away, full = StoreUnavailable("gone for 12 ms"), StoreError("no room")
    again = StoreUnavailable("gone for 13 ms")
    assert await said(away, full, again, full) == ["gone for 12 ms", "no room"]
    assert await said(away, None, again) == ["gone for 12 ms", "gone for 13 ms"]


async def test_failure_that_is_in_the_log_already_is_not_logged_again() -> None:
    known = StoreUnavailable("away")
    assert await said(known, StoreError("broken"), told=known) == ["broken"]


async def test_outage_does_not_count_as_a_failure_of_the_step() -> None:
    away = StoreUnavailable("away")
    steps, counted = Steps(None, away, away, StoreError("broken")), module.Steps()
    with steps.scope, anyio.fail_after(10):
        await every(0.001, steps.step, "it failed", has_reported=lambda error: error is away, steps=counted)
    assert steps.taken == 4 and counted.failed == 1


async def test_exception_that_is_none_of_korvets_ends_the_steps() -> None:
    steps = Steps(KorvetError("once"), ValueError("a defect"))
    with pytest.raises(ValueError, match="a defect"):
        await every(0.001, steps.step, "it failed")
    assert steps.taken == 2


async def test_failed_step_is_not_repeated_before_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RETRY_S", 3600.0)
    steps = Steps(None, KorvetError("once"), None)
    with anyio.move_on_after(1.0) as waited:
        await every(lambda: 0.0, steps.step, "it failed", at_once=True)
    assert waited.cancelled_caught
    assert steps.taken == 2


async def test_first_step_waits_for_its_interval_unless_it_is_taken_at_once() -> None:
    for at_once, taken in ((False, 0), (True, 1)):
        steps = Steps(None, None)
        with anyio.move_on_after(0.5):
            await every(3600.0, steps.step, "it failed", at_once=at_once)
        assert steps.taken == taken


async def test_step_runs_when_due_and_leaves_half_of_the_time() -> None:
    send, receive = anyio.create_memory_object_stream[None](10)
    taken_at: list[float] = []

    async def due() -> None:
        await receive.receive()

    async def step() -> None:
        taken_at.append(anyio.current_time())
        await anyio.sleep(0.05)

    with send, receive:
        for _ in range(3):
            send.send_nowait(None)
        with anyio.move_on_after(5) as scope, anyio.CancelScope() as enough:

            async def counted() -> None:
                await step()
                if len(taken_at) == 3:
                    enough.cancel()

            await whenever(due, counted, 0.001)
        assert not scope.cancelled_caught
    # A pause doubles the step's time, less the milliseconds to which timers are exact; without it the time is one step.
    assert all(later - earlier > 0.09 for earlier, later in pairwise(taken_at))


async def test_outcomes_are_replies_and_failures_of_the_store_in_order() -> None:
    ended: list[int] = []

    async def call(number: int, error: Exception | None = None) -> int:
        await anyio.sleep(0.001 * (3 - number))
        ended.append(number)
        if error is not None:
            raise error
        return number

    refused = StoreError("refused")
    assert await outcomes([partial(call, 0), partial(call, 1, refused), partial(call, 2)]) == [0, refused, 2]
    ended.clear()
    with pytest.raises(ValueError, match="a defect"):
        await outcomes([partial(call, 0), partial(call, 1, ValueError("a defect"))])
    assert sorted(ended) == [0, 1]
