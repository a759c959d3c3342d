"""Targets that front-ends compute from the group and the catalog, once for many heartbeats."""

from __future__ import annotations

import threading
from collections.abc import Collection, Sequence
from typing import Any
from uuid import UUID, uuid4

import anyio
import pytest
from kio.schema.errors import ErrorCode

import korvet.store.groups.consumer
import korvet.store.groups.subscriptions
from korvet.assignors import Assignment
from korvet.errors import StoreUnavailable
from korvet.redis.client import Purpose
from korvet.store.catalog.catalog import Catalog
from korvet.store.catalog.settings import ConfigChange, Owner
from korvet.store.groups.consumer_types import (
    ConsumerDescription,
    ConsumerMember,
    Heartbeaten,
    HeartbeatRequest,
    assignment_text,
    parse_assignment,
)
from korvet.store.groups.groups import Groups
from korvet.store.groups.subscriptions import Subscriptions, regex_problem
from korvet.store.groups.types import GroupDescription
from korvet.store.groups.why_unstable import waits
from korvet.store.outages import Outages
from tests.store.groups import new_group, open_groups, swept
from tests.store.logs import NAMESPACE, Front

pytestmark = pytest.mark.anyio
A, B = UUID(int=1), UUID(int=2)
SECONDS = 20.0


@pytest.fixture
async def groups(one: Front) -> Groups:
    return await open_groups(one, Outages(one.store))


async def topic(front: Front, partitions: int = 1, name: str = "") -> str:
    catalog = Catalog(NAMESPACE, front.store, front.wakeups)
    name = name or f"t-{uuid4().hex[:8]}"
    await catalog.create(name, uuid4(), partitions, {})
    return name


def request(group_id: str, member_id: str, epoch: int = 0, **more: Any) -> HeartbeatRequest:
    """A heartbeat of a member: a join, unless it has an epoch."""
    joins: dict[str, Any] = {"names": [], "owned": {}, "rebalance_timeout_ms": 60_000} if epoch == 0 else {}
    usual: dict[str, Any] = {
        "instance_id": None,
        "rack": None,
        "assignor": None,
        "regex": None,
        "names": None,
        "owned": None,
        "rebalance_timeout_ms": -1,
        "client_id": "client",
        "client_host": "/127.0.0.1",
        "version": 1,
    }
    return HeartbeatRequest(group_id=group_id, member_id=member_id, member_epoch=epoch, **{**usual, **joins, **more})


class Counting:
    """A count of the targets that a front-end begins to install; while ``gate`` is unset, each one waits."""

    def __init__(self, groups: Groups, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun = 0
        self.gate = anyio.Event()
        make_target = groups.consumers._make_target

        async def counted(group_id: str, prepare: Any) -> None:
            self.begun += 1
            await self.gate.wait()
            await make_target(group_id, prepare)

        monkeypatch.setattr(groups.consumers, "_make_target", counted)


# ------------------------------------------------------------------ the computation of targets


async def test_one_target_is_made_for_all_waiting_heartbeats(
    one: Front, groups: Groups, monkeypatch: pytest.MonkeyPatch
) -> None:
    counting, group_id, name = Counting(groups, monkeypatch), new_group(), await topic(one, 20)
    answers: list[Heartbeaten] = []

    async def join(member: int) -> None:
        answers.append(await groups.consumers.heartbeat(request(group_id, f"m{member}", names=[name])))

    with anyio.fail_after(SECONDS):
        async with anyio.create_task_group() as tasks:
            for member in range(20):
                tasks.start_soon(join, member)
            while counting.begun < 1:
                await anyio.sleep(0.01)
            while len(await members(groups, group_id)) < 20:
                await anyio.sleep(0.01)
            counting.gate.set()
    assert {answer.code for answer in answers} == {0}
    assert counting.begun <= 3
    assert groups.consumers._target_requests == {}


async def members(groups: Groups, group_id: str) -> Sequence[ConsumerMember]:
    group = await groups.administration.describe(group_id)
    return () if group is None or group.consumer is None else group.consumer.members


async def test_client_that_leaves_while_it_makes_the_target_stops_no_other_client(
    one: Front, groups: Groups, monkeypatch: pytest.MonkeyPatch
) -> None:
    counting, group_id, name = Counting(groups, monkeypatch), new_group(), await topic(one)
    leaving = anyio.CancelScope()

    async def join(member: str, scope: anyio.CancelScope) -> None:
        with scope:
            answers[member] = await groups.consumers.heartbeat(request(group_id, member, names=[name]))

    answers: dict[str, Heartbeaten] = {}
    with anyio.fail_after(SECONDS):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(join, "first", leaving)
            while counting.begun < 1:
                await anyio.sleep(0.01)
            tasks.start_soon(join, "second", anyio.CancelScope())
            while len(await members(groups, group_id)) < 2:
                await anyio.sleep(0.01)
            leaving.cancel()
            counting.gate.set()
    assert list(answers) == ["second"]
    assert answers["second"].code == 0
    assert groups.consumers._target_requests == {}


async def test_failure_ends_all_waiting_heartbeats(groups: Groups, monkeypatch: pytest.MonkeyPatch) -> None:
    group_id, told = new_group(), 0

    async def fail(*_: Any) -> None:
        raise StoreUnavailable("gone", outcome_unknown=False)

    async def join(member: int) -> None:
        nonlocal told
        with pytest.raises(StoreUnavailable):
            await groups.consumers.heartbeat(request(group_id, f"m{member}"))
        told += 1

    monkeypatch.setattr(groups.consumers, "_make_target", fail)
    with anyio.fail_after(SECONDS):
        async with anyio.create_task_group() as tasks:
            for member in range(5):
                tasks.start_soon(join, member)
    assert told == 5
    assert groups.consumers._target_requests == {}


async def test_member_is_answered_while_others_keep_changing_the_group(
    one: Front, groups: Groups, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another member joins after each computed target, so the last target must be the answer."""
    group_id, name, others = new_group(), await topic(one, 3), 0
    assert (await groups.consumers.heartbeat(request(group_id, "first", names=[name]))).code == 0
    make_target = groups.consumers._make_target

    async def overtaken(group_id: str, prepare: Any) -> None:
        nonlocal others
        await make_target(group_id, prepare)
        others += 1
        reply = await groups.consumers._consume(
            request(group_id, f"other{others}", names=[name]), f"other{others}", b"", answers_anyway=False
        )
        assert reply[2] == b"target"

    monkeypatch.setattr(groups.consumers, "_make_target", overtaken)
    answer = await groups.consumers.heartbeat(request(group_id, "second", names=[name]))
    assert (answer.code, others) == (0, 4)


async def test_large_target_is_computed_beside_the_loop(one: Front, groups: Groups) -> None:
    name, group_id = await topic(one, 1000), new_group()
    first = await groups.consumers.heartbeat(request(group_id, "a", names=[name]))
    await groups.consumers.heartbeat(request(group_id, "b", names=[name]))
    (a, b) = await members(groups, group_id)
    assert first.assignment is not None and [len(parts) for parts in first.assignment.values()] == [1000]
    assert [sum(map(len, member.target.values())) for member in (a, b)] == [500, 500]


async def test_front_end_with_an_older_catalog_reads_it_first(one: Front, other: Front, groups: Groups) -> None:
    """The front-end takes no topic away that the newer catalog showed."""
    catalog = Catalog(NAMESPACE, other.store, other.wakeups)
    await catalog.open()
    elsewhere = Groups(NAMESPACE, other.store, catalog, other.wakeups, Outages(other.store), other.log)
    group_id, name = new_group(), await topic(one)
    await groups.consumers.heartbeat(request(group_id, "a", names=[name]))
    epoch = (await groups.consumers.heartbeat(request(group_id, "a", 1))).member_epoch
    answer = await elsewhere.consumers.heartbeat(request(group_id, "a", epoch))
    assert (answer.code, answer.member_epoch, answer.assignment) == (0, epoch, None)
    assert [list(member.owned.values()) for member in await members(groups, group_id)] == [[(0,)]]


async def test_front_end_with_an_older_catalog_makes_no_target_from_it(
    one: Front, other: Front, groups: Groups
) -> None:
    """The catalog changes between the front-end's check for changes and its snapshot."""
    prefix, group_id = f"p-{uuid4().hex[:8]}", new_group()
    await topic(one, 1, f"{prefix}.u")
    catalog = Catalog(NAMESPACE, other.store, other.wakeups)
    await catalog.open()
    elsewhere = Groups(NAMESPACE, other.store, catalog, other.wakeups, Outages(other.store), other.log)
    await topic(one, 1, f"{prefix}.v")
    await groups.consumers.heartbeat(request(group_id, "m", regex=f"{prefix}.*"))
    await groups.consumers.heartbeat(request(group_id, "m", 1))
    epochs = [member.epoch for member in await members(groups, group_id)]
    await elsewhere.consumers.bring_up_to_date(group_id)
    (member,) = await members(groups, group_id)
    assert (epochs, member.epoch, len(member.target)) == ([2], 2, 2)


async def test_only_changed_topics_lead_to_new_targets(
    one: Front, other: Front, groups: Groups, monkeypatch: pytest.MonkeyPatch
) -> None:
    group_id, name = new_group(), await topic(one)
    await groups.consumers.heartbeat(request(group_id, "m", names=[name]))
    counting = Counting(groups, monkeypatch)
    counting.gate.set()
    catalog = Catalog(NAMESPACE, other.store, other.wakeups)
    await catalog.open()
    found = catalog.topic(name)
    assert found is not None
    await catalog.configure(found, ConfigChange(set={"retention.ms": "1000"}))
    change = ConfigChange(set={"consumer.heartbeat.interval.ms": "6000"})
    await catalog.configure_own(Owner.GROUP, group_id, change, 1000, validate_only=False)
    await groups.consumers._catalog.refresh()
    assert (await groups.consumers.heartbeat(request(group_id, "m", 1))).member_epoch == 1
    assert counting.begun == 0
    await catalog.grow(found, 2)
    await groups.consumers._catalog.refresh()
    assert (await groups.consumers.heartbeat(request(group_id, "m", 1))).member_epoch == 2
    assert counting.begun == 1
    await catalog.begin_delete(found)
    await groups.consumers._catalog.refresh()
    assert (await groups.consumers.heartbeat(request(group_id, "m", 2))).assignment == {}
    assert counting.begun == 2
    assert catalog.topics_digest == groups.consumers._catalog.topics_digest


async def test_unavailable_redis_is_tried_once_for_all_waiting_heartbeats(
    groups: Groups, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Redis does not answer: if heartbeats called one after another, each would wait for all calls before its own."""
    group_id, all_wait, tried, failed = new_group(), anyio.Event(), 0, 0

    async def fail(*_: Any) -> None:
        nonlocal tried
        tried += 1
        await all_wait.wait()
        raise StoreUnavailable("gone", outcome_unknown=False)

    async def wait_for_target() -> None:
        nonlocal failed
        try:
            await groups.consumers.bring_up_to_date(group_id)
        except StoreUnavailable:
            failed += 1

    monkeypatch.setattr(groups.consumers, "_make_target", fail)
    async with anyio.create_task_group() as tasks:
        for _ in range(5):
            tasks.start_soon(wait_for_target)
        await anyio.wait_all_tasks_blocked()
        assert groups.consumers._target_requests[group_id].requesting == 5
        all_wait.set()
    assert (tried, failed) == (1, 1)


# ------------------------------------------------------------------ groups without living members


async def test_consumer_group_whose_members_all_expired_becomes_empty_and_expires(one: Front, groups: Groups) -> None:
    group_id = new_group()
    await groups.consumers.heartbeat(request(group_id, "m"))
    keys = NAMESPACE.group(group_id)

    async def call(key: str, command: str, *args: str | int) -> Any:
        return await one.store.call(Purpose.COORDINATE, key, command, key, *args)

    assert await groups.administration.neglected([]) == (set(), set())
    assert await call(keys.sessions, "ZADD", 1, "m") == 0
    assert await groups.administration.neglected([]) == ({group_id}, set())
    assert await swept(groups, frozenset()) == set()
    assert await call(keys.group, "HGET", "state") == b"Empty"
    assert await call(keys.group, "PTTL") > 0
    assert await groups.administration.neglected([]) == (set(), set())
    assert [(listed.group_id, listed.state, listed.type) for listed in await groups.administration.list()] == [
        (group_id, "Empty", "consumer")
    ]


async def test_list_reads_the_states_of_wanted_groups_alone(groups: Groups, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user without rights could make a front-end ask for thousands of groups, and be shown none."""
    ids = sorted(new_group() for _ in range(3))
    for group_id in ids:
        await groups.consumers.heartbeat(request(group_id, "m"))
    asked: list[str] = []
    call = groups.administration._calls.call

    def noted(function: str, group_id: str, **values: Any) -> Any:
        asked.append(group_id)
        return call(function, group_id, **values)

    async def wanted(some: Sequence[str]) -> Sequence[str]:
        return [one for one in some if one == ids[1]]

    monkeypatch.setattr(groups.administration._calls, "call", noted)
    assert [one.group_id for one in await groups.administration.list(wanted)] == asked == [ids[1]]


# ------------------------------------------------------------------ subscriptions


async def test_names_and_regexes_are_resolved_over_the_catalog(one: Front) -> None:
    prefix = f"p-{uuid4().hex[:8]}"
    for suffix, partitions in (("a", 1), ("b", 2), ("ba", 3)):
        await topic(one, partitions, f"{prefix}.{suffix}")
    catalog = Catalog(NAMESPACE, one.store, one.wakeups)
    await catalog.open()
    subscriptions = Subscriptions(catalog)
    found = subscriptions.resolved(
        [("names", [f"{prefix}.a", "none"], ""), ("regex", [], rf"{prefix}\.b"), ("both", [f"{prefix}.a"], ".*[.]b.?")]
    )
    sizes = {member: sorted(found.partitions[id] for id in ids) for member, ids in found.members.items()}
    assert sizes["names"] == [1]
    assert sizes["regex"] == [2], "the whole name has to match"
    assert sizes["both"][:3] == [1, 2, 3]
    lines = [line.split() for line in found.text.splitlines()]
    assert [line[0] for line in lines] == sorted(line[0] for line in lines)
    assert [f"{prefix}.ba", "3"] in [[line[0], line[2]] for line in lines]
    assert subscriptions.lines_of([b"none", b"\xff"]) == b"none - 0\n\xff - 0"
    await topic(one, 4, f"{prefix}.b1")
    await catalog.refresh()
    found = subscriptions.resolved([("m", [], rf"{prefix}\.b.?")])
    assert sorted(found.partitions.values()) == [2, 3, 4]


async def test_regex_is_tried_once_on_a_name(one: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    prefix = f"p-{uuid4().hex[:8]}"
    regexes = [f"{prefix}.*"]
    catalog = Catalog(NAMESPACE, one.store, one.wakeups)
    await catalog.open()
    subscriptions = Subscriptions(catalog)
    for suffix in "uv":
        await catalog.create(f"{prefix}.{suffix}", uuid4(), 1, {})
    assert subscriptions.untried(regexes) == len(catalog.topics())
    subscriptions.match(regexes)
    assert subscriptions.untried(regexes) == 0
    await catalog.create(f"{prefix}.w", uuid4(), 1, {})
    assert subscriptions.untried(regexes) == 1

    def names() -> list[str]:
        return [line.split()[0] for line in subscriptions.resolved([("m", [], regexes[0])]).text.splitlines()]

    assert names() == [f"{prefix}.{suffix}" for suffix in "uvw"]
    gone = catalog.topic(f"{prefix}.v")
    assert gone is not None
    await catalog.begin_delete(gone)
    assert (names(), subscriptions.untried(regexes)) == ([f"{prefix}.u", f"{prefix}.w"], 0)
    monkeypatch.setattr(korvet.store.groups.subscriptions, "_MOST_GONE", -len(catalog.topics()) - 1)
    await catalog.create(f"{prefix}.x", uuid4(), 1, {})
    assert subscriptions.untried(regexes) == len(catalog.topics()), "names of topics that are gone are dropped"
    assert names() == [f"{prefix}.{suffix}" for suffix in "uwx"]


async def test_group_of_members_by_the_hundred_gets_a_target_and_is_described(one: Front, groups: Groups) -> None:
    name, group_id, ids = await topic(one, 300), new_group(), [f"m{number:03}" for number in range(300)]
    async with anyio.create_task_group() as tasks:
        for member in ids:
            tasks.start_soon(groups.consumers.heartbeat, request(group_id, member, names=[name]))
    await groups.consumers.bring_up_to_date(group_id)
    described = await members(groups, group_id)
    assert sorted(member.id for member in described) == ids
    targets = [partition for member in described for parts in member.target.values() for partition in parts]
    assert sorted(targets) == list(range(300))


async def test_member_may_not_name_more_topics_than_a_call_takes(groups: Groups) -> None:
    names = [f"t{number}" for number in range(10_001)]
    answer = await groups.consumers.heartbeat(request(new_group(), "m", names=names))
    assert answer.code == int(ErrorCode.invalid_request)
    answer = await groups.consumers.heartbeat(request(new_group(), "m", names=["t"] * 20_000))
    assert answer.code == 0


async def test_names_are_matched_beside_the_loop(one: Front, groups: Groups, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[int] = []
    match = groups.consumers._subscriptions.match

    def noted(regexes: Collection[str]) -> None:
        threads.append(threading.get_ident())
        match(regexes)

    monkeypatch.setattr(groups.consumers._subscriptions, "match", noted)
    name, group_id = await topic(one), new_group()
    await groups.consumers.heartbeat(request(group_id, "m", regex=f"{name}.*"))
    assert threads == []
    answer = await groups.consumers.heartbeat(request(group_id, "m", 1))
    assert answer.assignment is not None and list(answer.assignment.values()) == [(0,)]
    assert len(threads) == 1 and threads[0] != threading.get_ident()


@pytest.mark.parametrize("regex", [r"(a)\1", "(?<=a)b", "a{1001}", "a**", "[b-a]", "\ud800"])
def test_expression_that_re2_refuses_is_no_regex(regex: str) -> None:
    assert (regex_problem(regex) or "").startswith(f"SubscribedTopicRegex `{regex}` is not a valid regular expression:")


# ------------------------------------------------------------------ values


@pytest.mark.parametrize("assignment", [{}, {A: (0,)}, {A: (0, 2, 10), B: (1,)}])
def test_assignment_is_read_as_it_was_written(assignment: Assignment) -> None:
    assert parse_assignment(assignment_text(assignment)) == assignment


def test_assignment_has_one_text() -> None:
    text = f"{A.hex}:2,10 {B.hex}:0"
    assert assignment_text({B: [0], A: [10, 2], UUID(int=3): []}) == text


def member(
    id: str, epoch: int, owned: Assignment, target: Assignment, revoking: Assignment | None = None
) -> ConsumerMember:
    return ConsumerMember(
        id=id,
        instance_id=None,
        rack=None,
        client_id="",
        client_host="",
        epoch=epoch,
        previous_epoch=0,
        state="",
        assignor=None,
        names=(),
        regex="",
        owned=owned,
        revoking=revoking or {},
        target=target,
        is_classic=False,
    )


def told(*members: ConsumerMember, epoch: int = 2, target_epoch: int = 2) -> list[str]:
    group = GroupDescription(
        id="",
        locator="",
        type="consumer",
        state="",
        generation=epoch,
        protocol_type="consumer",
        protocol="",
        leader="",
        members=(),
        consumer=ConsumerDescription(epoch=epoch, target_epoch=target_epoch, members=members),
    )
    return waits(group, lambda id: "ab"[id.int - 1])


def test_sentences_name_the_members_that_give_up_partitions_and_that_wait() -> None:
    assert told() == told(member("m", 2, {A: (0,)}, {A: (0,)})) == []
    assert told(member("m", 1, {}, {}), epoch=3) == [
        "the target is of epoch 2, and a heartbeat has yet to make that of 3"
    ]
    assert told(
        member("m", 1, {A: (0,)}, {A: (0,)}, revoking={A: (1, 2)}),
        member("n", 2, {A: (3,)}, {A: (1, 3), B: (0, 1)}),
        member("o", 1, {}, {}),
        member("p", -2, {}, {B: (2,)}),
    ) == [
        "m has to give up a-1, a-2",
        "n has yet to take b-0, b-1",
        "n waits for a-1, which m still has",
        "o has yet to go on from epoch 1 to 2",
        "p is away, and the group waits for it until its session ends",
    ]


def test_sentences_about_a_large_group_are_bounded() -> None:
    (said,) = told(member("m", 1, {A: tuple(range(10))}, {}))
    assert said == "m has to give up a-0, a-1, a-2, a-3, a-4 and 5 more"
    many = told(*(member(f"m{at:02}", 1, {}, {}) for at in range(30)))
    assert (len(many), many[-1]) == (21, "and 10 more")
