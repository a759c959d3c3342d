"""PLAIN of users whose credentials change while a login waits for its thread."""

from __future__ import annotations

from collections.abc import Callable

import anyio
import anyio.to_thread
import pytest

from korvet.security.plain import PlainLogin, is_right
from korvet.security.scram import Credentials, Judge, make_credential
from korvet.store.security.users import Credential, CredentialKey

KEY = CredentialKey("SCRAM-SHA-256", "alice")
STRONGER = CredentialKey("SCRAM-SHA-512", "alice")
FORMER = make_credential(KEY.mechanism, "former")

Known = dict[CredentialKey, Credential]


class Users:
    """Credentials as they are at each look; the last ones stay."""

    def __init__(self, *states: Known) -> None:
        self._states = list(states)
        self.looks = 0

    async def judge(self) -> Judge:
        self.looks += 1
        return Credentials(self._states.pop(0) if len(self._states) > 1 else self._states[0], b"secret")


async def in_thread(derive: Callable[[], bytes]) -> bytes:
    return await anyio.to_thread.run_sync(derive)


def renewed(password: str = "new") -> Known:
    return {KEY: make_credential(KEY.mechanism, password)}


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("password", "later", "is_let_in"),
    [
        ("former", {KEY: FORMER}, True),
        ("former", renewed(), False),
        ("new", renewed(), True),
        ("former", {}, False),
        ("former", {STRONGER: make_credential(STRONGER.mechanism, "new"), KEY: FORMER}, False),
    ],
    ids=["unchanged", "the former one", "the new one", "user deleted", "another mechanism came"],
)
async def test_login_that_waited_is_judged_by_the_credential_that_counts_then(
    password: str, later: Known, is_let_in: bool
) -> None:
    users = Users({KEY: FORMER}, later)
    outcomes: list[bool] = []
    go_on = anyio.Event()

    async def later_in_thread(derive: Callable[[], bytes]) -> bytes:
        await go_on.wait()
        return await in_thread(derive)

    async def log_in() -> None:
        outcomes.append(await is_right(PlainLogin("alice", password), users.judge, later_in_thread))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(log_in)
        await anyio.wait_all_tasks_blocked()
        assert users.looks == 1
        go_on.set()
    assert outcomes == [is_let_in]


@pytest.mark.anyio
async def test_user_who_is_added_while_a_login_waits_is_let_in() -> None:
    users = Users({}, renewed())
    assert await is_right(PlainLogin("alice", "new"), users.judge, in_thread)


@pytest.mark.anyio
async def test_credential_that_changes_during_each_derivation_lets_nobody_in() -> None:
    users = Users(*(renewed("right") for _ in range(10)))
    assert not await is_right(PlainLogin("alice", "right"), users.judge, in_thread)
    assert users.looks == 4
