"""Access rules as two front-ends of a real server judge by them: no stale ones, no half ones, no long judgements."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from itertools import pairwise
from types import SimpleNamespace
from typing import cast

import anyio
import anyio.lowlevel
import pytest
from structlog.testing import capture_logs

from korvet.api.shared import needs
from korvet.api.shared.context import Context
from korvet.api.shared.loop_turns import SLICE, LoopTurns
from korvet.codes import POLICY_VIOLATION
from korvet.errors import StoreError
from korvet.security.acl import Acl, Operation, PatternType, Permission, ResourceType
from korvet.security.audit import Audit
from korvet.security.authorizer import Authorizer
from korvet.security.rights import Rights
from korvet.security.stored_rules import LONGEST_SHOWN, MOST_RULES, encoded
from tests.store.logs import NAMESPACE, Front, until
from tests.support.ported import kafka
from tests.support.redis import Server

pytestmark = pytest.mark.anyio

TOPIC = ResourceType.TOPIC
READ, WRITE = Operation.READ, Operation.WRITE
ALICE, HOST = "User:alice", "10.0.0.1"
KEY = NAMESPACE.security.acls


def rule(
    name: str = "t",
    operation: Operation = READ,
    permission: Permission = Permission.ALLOW,
    pattern: PatternType = PatternType.LITERAL,
    principal: str = ALICE,
) -> Acl:
    return Acl(TOPIC, pattern, name, principal, "*", operation, permission)


def authorizer_of(front: Front) -> Authorizer:
    return Authorizer(NAMESPACE, front.store, front.wakeups, Audit("test"), {"User:admin"}, False)


@pytest.fixture
async def judge(one: Front) -> Authorizer:
    return authorizer_of(one)


@pytest.fixture
async def following(other: Front) -> AsyncIterator[Authorizer]:
    """The judge of another front-end, which follows changes."""
    judge = authorizer_of(other)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(judge.follow)
        yield judge
        tasks.cancel_scope.cancel()


def reads(judge: Authorizer, name: str = "t", operation: Operation = READ, principal: str = ALICE) -> bool:
    return Rights(judge, principal, HOST, "test").sees(operation, TOPIC, name)


@kafka("StandardAuthorizerTest.testAuthorizationPriorToCompleteInitialLoad")
async def test_nothing_is_allowed_but_to_super_users_before_the_rules_were_read(judge: Authorizer) -> None:
    assert not reads(judge)
    assert reads(judge, principal="User:admin")
    await judge.add([rule()])
    assert reads(judge)


@kafka(
    "AuthorizerTest.testAddAclsOnLiteralResource",
    "AuthorizerTest.testAddAclsOnWildcardResource",
    "AuthorizerTest.testAddAclsOnPrefixedResource",
    "AuthorizerTest.testDeleteAclOnWildcardResource",
    "AuthorizerTest.testDeleteAllAclOnWildcardResource",
    "AuthorizerTest.testDeleteAclOnPrefixedResource",
    "AuthorizerTest.testDeleteAllAclOnPrefixedResource",
)
@pytest.mark.parametrize(
    ("name", "pattern"), [("t", PatternType.LITERAL), ("*", PatternType.LITERAL), ("t", PatternType.PREFIXED)]
)
async def test_rules_of_a_name_are_added_once_and_removed_one_by_one_or_all(
    judge: Authorizer, name: str, pattern: PatternType
) -> None:
    read, write = (rule(name, operation, pattern=pattern) for operation in (READ, WRITE))
    denied = rule(name, READ, Permission.DENY, pattern)
    await judge.add([read, write])
    assert reads(judge) and reads(judge, operation=WRITE)
    await judge.add([write, denied])
    assert set(judge.acls) == {read, write, denied} and len(judge.acls) == 3
    assert not reads(judge) and reads(judge, operation=WRITE)
    await judge.remove([denied])
    assert reads(judge)
    await judge.remove([read])
    assert judge.acls == [write]
    await judge.remove([read, write, denied])
    assert judge.acls == []


async def test_another_front_end_follows_each_change(judge: Authorizer, following: Authorizer) -> None:
    await judge.add([rule("a"), rule("b")])
    await until(lambda: reads(following, "a") and reads(following, "b"))
    await judge.remove([rule("a")])
    await until(lambda: not reads(following, "a"))
    assert reads(following, "b")


async def test_rules_that_follow_on_a_deleted_key_are_not_taken_for_those_before(
    judge: Authorizer, other: Front, server: Server
) -> None:
    """A front-end that missed the deletion sees another version, however many changes came before and after it."""
    late = authorizer_of(other)
    await judge.add([rule("old")])
    await late.refresh()
    with server.client() as client:
        client.delete(KEY)
    await judge.add([rule("new")])
    await late.refresh()
    assert (reads(late, "old"), reads(late, "new")) == (False, True)


async def test_a_deleted_key_leaves_no_rule_in_force(judge: Authorizer, server: Server) -> None:
    await judge.add([rule()])
    with server.client() as client:
        client.delete(KEY)
    await judge.refresh()
    assert not reads(judge) and judge.acls == []


async def test_a_refused_request_adds_none_of_its_rules(judge: Authorizer) -> None:
    many = [rule(str(number)) for number in range(MOST_RULES + 1)]
    assert await judge.add(many) == POLICY_VIOLATION
    assert await judge.add([*many[:2], rule("x" * 3000)]) == POLICY_VIOLATION
    assert await judge.add([rule(f"{number}{'x' * 1900}") for number in range(2500)]) == POLICY_VIOLATION
    await judge.refresh()
    assert judge.acls == []
    assert await judge.add(many[:-1]) == 0
    assert len(judge.acls) == MOST_RULES
    assert await judge.remove(many[:-1]) == 0
    assert judge.acls == []


async def test_concurrent_changes_and_reads_end_with_all_rules(judge: Authorizer, following: Authorizer) -> None:
    async def add(part: int) -> None:
        for number in range(20):
            await judge.add([rule(f"{part}-{number}")])

    async with anyio.create_task_group() as tasks:
        for part in range(5):
            tasks.start_soon(add, part)
    assert len(judge.acls) == 100
    await until(lambda: len(following.acls) == 100)


UNREADABLE = {
    "no rule": ("rule", "everything"),
    "deep nesting": ("[" * 1_200, "everything"),
    "a part less": ('[2,3,"t","User:alice","*",3]', "everything"),
    "a number as a text": ('[2,3,"t","User:alice","*","3",2]', "everything"),
    "a list as a number": ('[2,3,"t","User:alice","*",[],2]', "everything"),
    "an empty principal": ('[2,3,"t","","*",3,2]', "everything"),
    "a new permission": ('[2,3,"t","User:alice","*",3,9]', "reading t"),
    "a new operation denied": ('[2,3,"t","User:alice","*",99,2]', "all of t"),
    "a new operation allowed": ('[2,3,"t","User:alice","*",99,3]', "nothing"),
    "a new pattern denied": ('[2,9,"t","User:alice","*",3,2]', "reading all"),
    "a new pattern allowed": ('[2,9,"t","User:alice","*",3,3]', "nothing"),
    "a new resource type denied": ('[9,3,"t","User:alice","*",3,2]', "nothing"),
    "any resource type denied": ('[1,3,"t","User:alice","*",3,2]', "reading t"),
}
ASKED = [(name, operation) for name in ("t", "u") for operation in (READ, WRITE)]
DENIED = {
    "everything": set(ASKED),
    "reading all": {("t", READ), ("u", READ)},
    "all of t": {("t", READ), ("t", WRITE)},
    "reading t": {("t", READ)},
    "nothing": set[tuple[str, Operation]](),
}


@pytest.mark.parametrize(("text", "denied"), UNREADABLE.values(), ids=UNREADABLE.keys())
async def test_what_an_unreadable_rule_may_deny_is_denied_and_all_others_count(
    judge: Authorizer, server: Server, text: str, denied: str
) -> None:
    rules = [rule(*asked) for asked in ASKED]
    with server.client() as client:
        client.hset(KEY, text, 1)
    with capture_logs() as lines:
        await judge.add(rules)
    (line,) = lines
    assert (line["log_level"], line["rule"]) == ("error", text[:LONGEST_SHOWN])
    assert {asked for asked in ASKED if not reads(judge, *asked)} == DENIED[denied]
    assert reads(judge, principal="User:admin")
    assert sorted(judge.acls) == sorted(rules)
    with server.client() as client:
        client.fcall("korvet_acls_remove", 1, KEY, text)
    await judge.refresh()
    assert all(reads(judge, *asked) for asked in ASKED)


async def test_an_answer_that_cannot_be_read_leaves_the_rules_before_it(judge: Authorizer, server: Server) -> None:
    await judge.add([rule()])
    with server.client() as client:
        client.delete(KEY)
        client.set(KEY, "no hash")
    with pytest.raises(StoreError):
        await judge.refresh()
    assert reads(judge)


# ------------------------------------------------------------------ many names, many rules


class Counted(Rights):
    """Rights that count the answers given."""

    count = 0

    def allows(self, operation: Operation, kind: ResourceType, name: str) -> bool:
        self.count += 1
        return super().allows(operation, kind, name)


async def counts(work: Awaitable[object], count: Callable[[], int]) -> list[int]:
    """The counts that other work of the loop sees in its rounds, while some work is done."""
    seen = [count()]

    async def look() -> None:
        while True:
            await anyio.lowlevel.checkpoint()
            seen.append(count())

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(look)
        await work
        tasks.cancel_scope.cancel()
    return [*seen, count()]


@pytest.mark.parametrize("nesting", [1, 400])
async def test_other_work_goes_on_while_thirty_thousand_names_are_judged(judge: Authorizer, nesting: int) -> None:
    denials = [rule("*", principal=f"User:{number}", permission=Permission.DENY) for number in range(5000)]
    await judge.add([*denials, *(rule("x" * size, pattern=PatternType.PREFIXED) for size in range(1, nesting + 1))])
    turns, rights = LoopTurns(), Counted(judge, ALICE, HOST, "test")
    # A check needs no more of a context than this.
    ctx = cast(Context, SimpleNamespace(frontend=SimpleNamespace(turns=turns)))
    names = [f"{'x' * 500 if number % 2 else 'y'}-{number}" for number in range(30_000)]
    denied = set[str]()

    async def judged() -> None:
        denied.update(await turns.result(needs.denied_names(ctx, rights, READ, TOPIC, names)))

    seen = await counts(judged(), lambda: rights.count)
    assert denied == {name for name in names if name.startswith("y")}
    assert max(after - before for before, after in pairwise(seen)) <= SLICE // rights.weight + 1


async def test_other_work_goes_on_while_ten_thousand_rules_are_read(judge: Authorizer, server: Server) -> None:
    with server.client() as client:
        client.fcall("korvet_acls_add", 1, KEY, *(encoded(rule(str(number))) for number in range(MOST_RULES)))
    seen = await counts(judge.refresh(), lambda: len(judge.acls))
    assert seen[-1] == MOST_RULES
    assert len(seen) > MOST_RULES // SLICE
