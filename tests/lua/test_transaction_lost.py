"""Transactions that may have lost a part, because the history of their shard, a partition or a group changed.

A lost history is another replication id, in the shard's hash or with a member.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import redis

from tests.lua.group import plain
from tests.lua.log import GONE as NO_TOPIC
from tests.lua.log import TOPIC_ID
from tests.lua.transaction import (
    CONCURRENT_TRANSACTIONS,
    FRESH_ID,
    INVALID_TXN_STATE,
    NONE,
    PRODUCER_FENCED,
    TRANSACTION_ABORTABLE,
    ProducerReply,
    Transactional,
    TransactionLog,
    decision_of,
)

GONE = "f" * 40
"""The replication id of a lost server."""
CHECK = -9
FIRST = 1_700_000_000_000_000


class Lossy(Transactional):
    """A transactional id; its shard's history may change. It ends as by a front-end that looks at the members."""

    def changes_history(self) -> None:
        self.server.hset(self.keys[0], "history", GONE)

    def end_checked(self, producer: tuple[int, int], checked: str = "", version: int = 2) -> Any:
        args = (self.name, *producer, "commit", version)
        reply = self._call("end", *args, -1, "", checked)
        if reply[0] == FRESH_ID:
            self._ids += 1
            reply = self._call("end", *args, self._ids, "", checked)
        return reply

    def finish(self, told: ProducerReply) -> None:
        assert told.decision is not None
        self.complete(told.decision.ordinal)


@pytest.fixture
def app(server: redis.Redis, set_clock: Callable[[float], None]) -> Lossy:
    return Lossy(server, set_clock)


@pytest.fixture
def log(server: redis.Redis) -> TransactionLog:
    log = TransactionLog(server)
    assert log.create() == 0
    return log


# ---------------------------------------------------------------------- the shard


@pytest.mark.parametrize("version", [1, 2])
def test_commit_becomes_an_abort_if_the_shards_history_changed(app: Lossy, version: int) -> None:
    producer, ordinal = app.begun("t:0", groups=["g"])
    app.changes_history()
    told = app.end(producer, "commit", version)
    assert told.code == TRANSACTION_ABORTABLE
    assert told.decision is not None
    assert (told.decision.ordinal, told.decision.outcome, told.decision.groups) == (ordinal, "abort", ["g"])
    assert app.end(producer, "commit", version).code == TRANSACTION_ABORTABLE, "who asks again is told the same"
    app.finish(told)
    assert app.end(producer, "commit", version).code == TRANSACTION_ABORTABLE
    again = app.end(producer, "abort", version)
    assert (again.code, again.decision) == (NONE, None)
    assert app.add(again.producer, {"t:0": TOPIC_ID}).code == NONE
    assert app.end(again.producer, "commit", version).code == NONE


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("before", ["commit", "abort"])
def test_transaction_with_a_lost_beginning_does_not_begin_again(app: Lossy, version: int, before: str) -> None:
    producer = app.ended(before, version)
    goes_on = producer if version == 1 else (producer[0], producer[1] + 1)
    app.changes_history()
    # An earlier call may have added its first partition, and be lost.
    for mode in ("add", "verify"):
        assert app.add(goes_on, {"t:1": TOPIC_ID}, mode=mode) == (TRANSACTION_ABORTABLE, -1, [], None)
    told = app.end(goes_on, "abort", version)
    assert told.code == NONE
    if told.decision is not None:
        app.finish(told)
    assert app.add(told.producer, {"t:1": TOPIC_ID}).code == NONE
    assert app.end(told.producer, "commit", version).code == NONE


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("is_open", [True, False])
def test_producer_that_aborts_hears_of_the_loss_in_its_next_transaction(
    app: Lossy, version: int, is_open: bool
) -> None:
    producer = app.begun()[0] if is_open else app.ended(version=version)
    goes_on = producer if is_open or version == 1 else (producer[0], producer[1] + 1)
    app.changes_history()
    for expected in (TRANSACTION_ABORTABLE, NONE):
        told = app.end(goes_on, "abort", version)
        assert told.code == NONE
        if told.decision is not None:
            app.finish(told)
        goes_on = told.producer
        # Its earlier commit may be lost too.
        assert app.add(goes_on, {"t:0": TOPIC_ID}).code == expected


@pytest.mark.parametrize("is_open", [True, False])
def test_refused_batch_of_version_1_does_not_report_the_loss(app: Lossy, is_open: bool) -> None:
    # Its partition was added before the loss, and that may be lost too.
    producer = app.begun("t:0")[0] if is_open else app.ended(version=1)
    app.changes_history()
    # aiokafka's transaction goes on after that.
    assert app.add(producer, {"t:0": TOPIC_ID}, mode="verify").code == TRANSACTION_ABORTABLE
    for expected in (TRANSACTION_ABORTABLE, NONE):
        told = app.end(producer, "abort", 1)
        assert told.code == NONE
        if told.decision is not None:
            app.finish(told)
        assert app.add(producer, {"t:0": TOPIC_ID}).code == expected


@pytest.mark.parametrize("version", [1, 2])
def test_transaction_of_groups_with_a_lost_beginning_ends_in_an_abort(app: Lossy, version: int) -> None:
    producer = app.ended(version=version)
    goes_on = producer if version == 1 else (producer[0], producer[1] + 1)
    app.changes_history()
    for mode in ("add", "verify"):
        assert app._call("add", app.name, *goes_on, mode, "", "g", f" {GONE}")[2] == [NONE]
    assert app.end(goes_on, "commit", version).code == TRANSACTION_ABORTABLE
    assert app.state == "PrepareAbort"


def test_commit_of_version_1_is_fenced_if_its_transaction_may_be_lost(app: Lossy) -> None:
    producer, decision = app.decided(version=1)
    app.changes_history()
    assert app.end(producer, "commit", 1).code == PRODUCER_FENCED
    app.complete(decision.ordinal)
    assert app.end(producer, "commit", 1).code == PRODUCER_FENCED


def test_checked_commit_of_version_1_is_known_on_any_server(app: Lossy) -> None:
    producer, decision = app.decided(version=1)
    app.changes_history()
    checked = f"{decision.ordinal} 1 held"
    assert app.end_checked(producer, checked, version=1)[0] == CONCURRENT_TRANSACTIONS
    app.complete(decision.ordinal)
    assert app.end_checked(producer, checked, version=1)[0] == NONE
    assert app.end_checked(producer, f"{decision.ordinal + 1} 1 held", version=1)[0] == PRODUCER_FENCED


@pytest.mark.parametrize("version", [1, 2])
def test_commit_after_an_abort_is_of_a_lost_transaction(app: Lossy, version: int) -> None:
    producer = app.ended("abort", version)
    goes_on = producer if version == 1 else (producer[0], producer[1] + 1)
    assert app.end(goes_on, "commit", version).code == INVALID_TXN_STATE
    app.changes_history()
    assert app.end(goes_on, "commit", version).code == TRANSACTION_ABORTABLE


def test_repeated_commit_of_version_2_is_known_by_its_epoch_on_any_server(app: Lossy) -> None:
    producer = app.ended()
    app.changes_history()
    again = app.end(producer)
    assert again.code == NONE
    assert app.add(again.producer, {"t:0": TOPIC_ID}).code == NONE


@pytest.mark.parametrize("version", [1, 2])
def test_new_producer_begins_after_the_shards_history_changed(app: Lossy, version: int) -> None:
    app.ended(version=version)
    app.changes_history()
    producer = app.init().producer
    assert app.add(producer, {"t:0": TOPIC_ID}).code == NONE
    assert app.end(producer, "commit", version).code == NONE


# ---------------------------------------------------------------------- members


def test_commit_is_decided_when_all_members_hold_the_transaction(app: Lossy) -> None:
    producer = app.init().producer
    added = app.add(producer, {"t:0": f"{TOPIC_ID} {GONE}"})
    assert app._call("add", app.name, *producer, "add", "", "g", f" {GONE}")[2] == [NONE]
    code, _, _, (ordinal, size, cursor, members) = app.end_checked(producer)
    assert (code, ordinal, size, cursor) == (CHECK, added.ordinal, 2, b"0")
    flat = [plain(part) for part in members]
    expected = {"p:t:0": f"{TOPIC_ID} {GONE}", "g:g": f" {GONE}"}
    assert dict(zip(flat[::2], flat[1::2], strict=True)) == expected
    assert app.state == "Ongoing"
    reply = app.end_checked(producer, f"{ordinal} {size} held")
    decision = decision_of(reply[3])
    assert (reply[0], decision.outcome, decision.partitions, decision.groups) == (
        NONE,
        "commit",
        {"t:0": TOPIC_ID},
        ["g"],
    )


def test_commit_becomes_an_abort_if_a_member_lost_a_part(app: Lossy) -> None:
    producer, ordinal = app.begun()
    reply = app.end_checked(producer, f"{ordinal} 1 lost")
    assert (reply[0], decision_of(reply[3]).outcome) == (TRANSACTION_ABORTABLE, "abort")
    assert app.end_checked(producer, f"{ordinal} 1 held")[0] == TRANSACTION_ABORTABLE


def test_commit_asks_members_that_joined_after_the_first_look(app: Lossy) -> None:
    producer, ordinal = app.begun("t:0")
    app.add(producer, {"t:1": TOPIC_ID})
    assert app.end_checked(producer, f"{ordinal} 1 held")[0] == CHECK
    assert app.end_checked(producer, f"{ordinal - 1} 2 held")[0] == CHECK
    assert app.end_checked(producer, f"{ordinal} 2 held")[0] == NONE


def test_member_that_changed_its_server_must_abort(app: Lossy) -> None:
    producer = app.init().producer
    here, there = {"t:0": f"{TOPIC_ID} {'e' * 40}"}, {"t:0": f"{TOPIC_ID} {GONE}"}
    app.add(producer, here)
    for mode in ("add", "verify"):
        assert app.add(producer, there, mode=mode).codes == [TRANSACTION_ABORTABLE]
        assert app.add(producer, here, mode=mode).codes == [NONE]
        assert app.add(producer, {"t:0": TOPIC_ID}, mode=mode).codes == [NONE], "a front-end of the former version"


# ---------------------------------------------------------------------- partitions


def replid(log: TransactionLog) -> str:
    info: Any = log.server.info("replication")
    return str(info["master_replid"])


def held(log: TransactionLog, joined: str = "", ordinal: int = FIRST) -> int:
    keys = (log.meta, log.open, log.transactions)
    reply: Any = log.server.fcall_ro("korvet_log_check", 3, *keys, log.topic_id, joined, 7, ordinal)
    return int(reply)


def test_partition_of_an_unbroken_history_holds_its_transaction(log: TransactionLog) -> None:
    assert held(log, replid(log)) == NONE, "nothing was written yet"
    log.write(3, (7, 0, 0), FIRST)
    assert held(log) == held(log, replid(log)) == NONE
    log.topic_id = "b" * 32
    assert held(log) == NO_TOPIC


def test_partition_of_a_changed_history_may_have_lost_its_transaction(log: TransactionLog) -> None:
    log.write(3, (7, 0, 0), FIRST)
    assert held(log, GONE) == TRANSACTION_ABORTABLE
    log.server.hset(log.meta, "replid", GONE)
    assert held(log) == held(log, replid(log)) == TRANSACTION_ABORTABLE, "nobody wrote since"
    log.write(1, (7, 0, 3))
    assert held(log) == TRANSACTION_ABORTABLE, "it went on in a later epoch"


def test_partition_with_an_older_open_transaction_does_not_hold_this_one(log: TransactionLog) -> None:
    log.write(3, (7, 0, 0), FIRST)
    assert held(log, replid(log), FIRST + 1) == TRANSACTION_ABORTABLE


def test_listing_has_one_producer_of_many(log: TransactionLog) -> None:
    for producer_id in range(200):
        log.write(1, (producer_id, 0, 0), FIRST)
    reply: Any = log.server.fcall_ro("korvet_log_producers", 6, *log.keys, log.topic_id, 0, 150)
    assert [one[0] for one in reply[2]] == [150]
    reply = log.server.fcall_ro("korvet_log_producers", 6, *log.keys, log.topic_id, 0, 999)
    assert reply[1:] == [b"0", []]


# ---------------------------------------------------------------------- many members


def test_transaction_of_many_members_is_finished_in_steps(app: Lossy) -> None:
    producer = app.init().producer
    partitions = [f"t:{index}" for index in range(2000)]
    for at in range(0, len(partitions), 500):
        added = app.add(producer, dict.fromkeys(partitions[at : at + 500], TOPIC_ID))
        assert added.codes == [NONE] * 500
    told = app.end(producer)
    assert told.decision is not None
    app.complete(told.decision.ordinal)
    assert app.state == "PrepareCommit", "a front-end of the former version was not told of all"
    left, seen, most = told.decision, set[str](), 0
    while True:
        seen.update(left.partitions)
        most = max(most, len(left.partitions))
        done = [f"p:{partition}" for partition in left.partitions]
        assert app.end(producer).code == CONCURRENT_TRANSACTIONS
        for at in range(0, len(done), 1000):
            some = done[at : at + 1000]
            code, *decided = app._call("complete", app.name, left.ordinal, 1000, *some)
            assert code == NONE
        if not decided:
            break
        left = decision_of(decided[0])
    assert seen == set(partitions)
    assert most < 1600
    assert app.state == "CompleteCommit"
    assert app.server.hlen(app.keys[0]) < 20
    assert app.end(producer).code == NONE


def test_call_with_more_arguments_than_its_bound_is_refused(app: Lossy) -> None:
    producer = app.init().producer
    with pytest.raises(redis.ResponseError, match="at most 1000"):
        app.add(producer, dict.fromkeys((f"t:{index}" for index in range(501)), TOPIC_ID))
    with pytest.raises(redis.ResponseError, match="at most 1000"):
        app._call("complete", app.name, 1, 1000, *(f"p:t:{index}" for index in range(1001)))
    with pytest.raises(redis.ResponseError, match="neither a partition nor a group"):
        app._call("complete", app.name, 1, 1000, "state")


def test_front_ends_of_the_former_version_can_read_a_decision(app: Lossy) -> None:
    producer, _ = app.begun()
    reply = app._call("end", app.name, *producer, "commit", 2, -1)
    ordinal, _, _, outcome, _, _ = reply[3]
    assert (len(reply), outcome) == (5, b"commit")
    for function, args in (("init", (60_000, -1, -1, -1)), ("expire", (1000,))):
        app.pass_time(5)
        told = [part for part in app._call(function, app.name, *args) if isinstance(part, list)]
        assert [len(decision) for decision in told] == [6]
    assert app._call("complete", app.name, ordinal, 1000) == [NONE]
    assert app.state == "CompleteCommit"
