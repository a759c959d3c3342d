"""Guesses at passwords are bounded, and nobody who knows a password is locked out by them."""

from __future__ import annotations

from functools import partial

import anyio
import pytest

from korvet.errors import StoreUnavailable
from korvet.security.guesses import MOST_AT_ONCE, Guesses
from korvet.security.scram import LoginRefused

pytestmark = pytest.mark.anyio

NEVER_S = 600.0
HERE, ELSEWHERE = "192.0.2.1", "192.0.2.2"


class Tries:
    """Logins, and the users whose passwords were judged, in turn."""

    def __init__(self) -> None:
        self.guesses = Guesses()
        self.judged: list[str] = []

    async def log_in(self, address: str, user: str, error: Exception | None = None) -> bool:
        try:
            async with self.guesses.attempt(address, user):
                self.judged.append(user)
                if error is not None:
                    raise error
        except (LoginRefused, StoreUnavailable):
            return False
        return True

    async def guess(self, address: str, user: str = "alice") -> bool:
        return await self.log_in(address, user, LoginRefused("invalid credentials"))


@pytest.fixture
def tries(monkeypatch: pytest.MonkeyPatch) -> Tries:
    """Those of a process where an attempt comes back so late that no test sees it."""
    monkeypatch.setattr("korvet.security.guesses.EVERY_S", NEVER_S)
    return Tries()


async def test_guesses_of_an_address_are_not_judged_beyond_its_bound(tries: Tries) -> None:
    async with anyio.create_task_group() as tasks:
        for _ in range(MOST_AT_ONCE + 50):
            tasks.start_soon(tries.guess, HERE)
        await anyio.wait_all_tasks_blocked()
        assert len(tries.judged) == MOST_AT_ONCE
        # The same user is let in elsewhere.
        assert await tries.log_in(ELSEWHERE, "alice")
        tasks.cancel_scope.cancel()
    assert not any(tries.guesses._waiting.values())


async def test_user_who_logged_in_from_an_address_is_not_delayed_by_guesses_at_others_there(tries: Tries) -> None:
    assert await tries.log_in(HERE, "bob")
    for _ in range(MOST_AT_ONCE):
        await tries.guess(HERE)
    with anyio.move_on_after(0) as late:
        await tries.guess(HERE)
    assert late.cancelled_caught
    assert await tries.log_in(HERE, "bob")


async def test_successes_use_no_attempt_and_let_the_next_ones_go_on(tries: Tries) -> None:
    go_on = anyio.Event()

    async def log_in(user: str) -> None:
        async with tries.guesses.attempt(HERE, user):
            tries.judged.append(user)
            await go_on.wait()

    async with anyio.create_task_group() as tasks:
        for number in range(3 * MOST_AT_ONCE):
            tasks.start_soon(log_in, f"user-{number}")
        await anyio.wait_all_tasks_blocked()
        assert len(tries.judged) == MOST_AT_ONCE
        go_on.set()
    assert len(tries.judged) == 3 * MOST_AT_ONCE


async def test_logins_that_wait_are_judged_for_one_user_after_the_other(tries: Tries) -> None:
    failing, blocked = MOST_AT_ONCE - 1, anyio.Event()
    for _ in range(failing):
        await tries.guess(HERE)

    async def hold() -> None:
        async with tries.guesses.attempt(HERE, "holder"):
            await blocked.wait()

    tries.judged.clear()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(hold)
        await anyio.wait_all_tasks_blocked()
        for user in ("alice", "alice", "alice", "bob"):
            tasks.start_soon(tries.log_in, HERE, user)
        await anyio.wait_all_tasks_blocked()
        assert tries.judged == []
        blocked.set()
    assert tries.judged == ["alice", "bob", "alice", "alice"]


async def test_failure_of_the_store_uses_no_attempt(tries: Tries) -> None:
    for _ in range(2 * MOST_AT_ONCE):
        await tries.log_in(HERE, "alice", StoreUnavailable("away"))
    assert len(tries.judged) == 2 * MOST_AT_ONCE


async def test_attempts_come_back_with_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("korvet.security.guesses.EVERY_S", 0.001)
    tries = Tries()
    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            for _ in range(2 * MOST_AT_ONCE):
                tasks.start_soon(partial(tries.guess, HERE))
    assert len(tries.judged) == 2 * MOST_AT_ONCE
    await anyio.sleep(0.01)
    assert not tries.guesses._waiting
