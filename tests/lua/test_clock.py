"""Redis's clock goes back an hour: no deadline comes an hour later. Each unit sees it by a time that it has noted."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import redis

from tests.lua.consumer import ConsumerGroup, of
from tests.lua.group import NONE, REBALANCE_IN_PROGRESS, RETENTION_S, Group
from tests.lua.log import Log
from tests.lua.test_connections import COUNTERS, LEASES
from tests.lua.test_frontends import Registry
from tests.lua.test_group_redis_groups import find, note
from tests.lua.test_log_compaction import begin
from tests.lua.transaction import EXPIRATION_MS, Transactional

HOUR_S = 3600.0
SHORTLY_S = 0.001


def test_dead_member_of_a_classic_group_is_out_after_its_session(group: Group) -> None:
    alive, dead = group.stable(2, session_s=10)
    group.pass_time(-HOUR_S)
    for _ in range(3):
        assert group.heartbeat(alive, 2) == NONE
        group.pass_time(3)
    assert group.describe().member_ids == {alive, dead}
    group.pass_time(1)
    assert group.heartbeat(alive, 2) == REBALANCE_IN_PROGRESS
    assert group.describe().member_ids == {alive}


def test_dead_member_of_a_consumer_group_gives_its_partitions_to_a_newcomer(consumers: ConsumerGroup) -> None:
    consumers.targets = {"dead": of(foo=[0, 1])}
    consumers.enter("dead", "foo")
    consumers.pass_time(-HOUR_S)
    consumers.targets = {"new": of(foo=[0, 1])}
    epoch = consumers.enter("new", "foo").epoch
    consumers.pass_time(consumers.session_s - 1)
    assert consumers.beat("new", epoch).assignment is None
    consumers.pass_time(1)
    assert consumers.beat("new", epoch).assignment == of(foo=[0, 1])


def test_usual_heartbeat_of_a_consumer_group_notices_the_clock(consumers: ConsumerGroup) -> None:
    epoch = consumers.enter("alive", "foo").epoch
    assert consumers.is_settled("alive", epoch)
    consumers.pass_time(-HOUR_S)
    assert not consumers.is_settled("alive", epoch)
    consumers.consume("alive", epoch)
    assert consumers.is_settled("alive", epoch)


def test_member_that_gives_up_nothing_is_out_after_its_rebalance_timeout(consumers: ConsumerGroup) -> None:
    consumers.targets = {"holds": of(foo=[0, 1])}
    epoch = consumers.enter("holds", "foo", rebalance_s=20).epoch
    consumers.targets = {"holds": of(foo=[0]), "new": of(foo=[1])}
    newer = consumers.enter("new", "foo").epoch
    consumers.beat("holds", epoch)
    consumers.pass_time(-HOUR_S)
    for _ in range(2):
        consumers.beat("new", newer)
        assert "holds" in consumers.members()
        consumers.pass_time(10)
    consumers.beat("new", newer)
    assert "holds" not in consumers.members()


def test_rebalance_waits_for_a_member_no_longer_than_its_timeout(group: Group) -> None:
    alive, _ = group.stable(2, session_s=100, rebalance_s=30)
    assert group.join(alive, (("range", b"changed"),), session_s=100, rebalance_s=30).is_parked
    group.pass_time(-HOUR_S)
    assert group.wait(alive).is_parked
    group.pass_time(30)
    assert group.wait(alive).generation == 3


def test_empty_group_expires_after_its_retention(group: Group) -> None:
    assert group.commit({"t:0": "5 -1 aa "}) == NONE
    group.pass_time(-HOUR_S)
    group.heartbeat("nobody", 1)
    group.pass_time(RETENTION_S - SHORTLY_S)
    assert group.state == "Empty"
    group.pass_time(SHORTLY_S)
    assert group.state == "Dead"


def test_outage_that_was_noted_before_prolongs_nothing(group: Group) -> None:
    alive, _ = group.stable(2, session_s=10)
    group.outage(5)
    group.pass_time(-HOUR_S)
    for _ in range(4):
        group.heartbeat(alive, 2)
        group.pass_time(5)
    group.heartbeat(alive, 2)
    assert group.describe().member_ids == {alive}


def test_open_transaction_is_aborted_after_its_timeout(app: Transactional) -> None:
    producer = app.init(timeout_ms=15_000).producer
    app.add(producer, {"t:0": "1" * 32})
    app.pass_time(-HOUR_S)
    for _ in range(2):
        assert app.expire() is None
        app.pass_time(7.4)
        assert app.due() == []
    app.pass_time(0.2)
    assert app.due() == ["app"]
    decision = app.expire()
    assert decision is not None
    assert decision.outcome == "abort"


def test_partition_that_joins_a_transaction_does_not_put_its_end_off(app: Transactional) -> None:
    producer = app.init(timeout_ms=15_000).producer
    app.add(producer, {"t:0": "1" * 32})
    app.pass_time(-HOUR_S)
    app.add(producer, {"t:1": "1" * 32})
    app.pass_time(15)
    assert app.due() == ["app"]
    assert app.expire() is not None


def test_unfinished_decision_is_due_again_soon(app: Transactional) -> None:
    _, decision = app.decided()
    app.pass_time(-HOUR_S)
    assert app.expire() == decision
    app.pass_time(1)
    assert (app.due(), app.expire()) == (["app"], decision)


def test_unused_transactional_id_is_forgotten_after_its_expiration(app: Transactional) -> None:
    app.ended()
    app.pass_time(-HOUR_S)
    assert app.expire() is None
    app.pass_time(EXPIRATION_MS / 1000)
    assert app.due() == ["app"]
    app.expire()
    assert app.state == ""


def test_compaction_of_a_dead_front_end_holds_no_other_up(log: Log, set_clock: Callable[[float], None]) -> None:
    assert begin(log, "dead") == [0, b"ready"]
    set_clock(1_700_000_000 - HOUR_S)
    assert begin(log, "other") == [0, b"ready"]


def others_of(server: redis.Redis, front_end: str) -> object:
    """The connections that other front-ends have."""
    return server.fcall("korvet_connections_count", 2, LEASES, COUNTERS[0], front_end, 60_000, 3)[2]


def test_connections_of_a_dead_front_end_do_not_count(server: redis.Redis, set_clock: Callable[[float], None]) -> None:
    set_clock(4_000_000_000)
    others_of(server, "dead")
    assert others_of(server, "alive") == [3]
    set_clock(4_000_000_000 - HOUR_S)
    assert others_of(server, "alive") == [0]


def test_clock_that_is_set_back_by_some_ms_ends_no_lease(log: Log, set_clock: Callable[[float], None]) -> None:
    """As time servers do. Metadata would lack the other front-end, or both would do the same work."""
    registry = Registry(log.server, set_clock)
    begin(log, "first")
    registry.renew("first:9092")
    assert registry.has_turn("first")
    others_of(log.server, "first")
    registry.pass_time(-0.005)
    assert begin(log, "second") == [0, b"busy"]
    assert set(registry.renew("second:9092").live.values()) == {"first:9092", "second:9092"}
    assert not registry.has_turn("second")
    assert others_of(log.server, "second") == [3]


def test_reader_note_of_before_is_over(group: Group) -> None:
    note(group, "g", "t:0")
    group.pass_time(-HOUR_S)
    assert find(group, "t:0") == [""]


def test_silent_producers_are_noted_a_day_later_at_most(log: Log, set_clock: Callable[[float], None]) -> None:
    def noted_ms() -> int:
        args = (log.topic_id, 86_400_000, 1)
        keys = (*log.keys, *(f"{log.log}:{part}" for part in ("open", "aborted", "transactions")))
        assert log.call("korvet_log_forget_producers", *args, keys=keys)[0] == NONE
        return int(log.server.hget(log.producers, "").split()[2])  # type: ignore[union-attr]

    log.server.hset(log.producers, mapping={str(one): "0 0|0,0,0" for one in range(3)})
    assert noted_ms() == 1_700_000_000_000
    set_clock(1_700_000_000 - HOUR_S)
    assert noted_ms() == (1_700_000_000 - HOUR_S) * 1000


@pytest.mark.parametrize("back_s", [0.001, 1, 9.999])
def test_step_of_less_than_a_session_keeps_a_member_for_less_than_two(group: Group, back_s: float) -> None:
    (member,) = group.stable(session_s=10)
    group.pass_time(3)
    assert group.heartbeat(member, 1) == NONE
    group.pass_time(-back_s)
    group.pass_time(20)
    assert group.describe().member_ids == set()
