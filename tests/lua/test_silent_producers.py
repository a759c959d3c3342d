"""Expiration of producers in partitions (producer.id.expiration.ms) and of transactional ids in shards
(transactional.id.expiration.ms), by the library's clock."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import redis

from korvet.store.background.maintenance import enforce_retention
from korvet.store.catalog.catalog import Catalog
from korvet.store.catalog.settings import ConfigChange
from korvet.store.groups.groups import Groups
from korvet.store.outages import Outages
from korvet.store.transactions.transactions import Transactions
from tests.lua.log import GONE
from tests.lua.partition import Loop
from tests.lua.remembering import HOUR_MS, START_S, Clock, Remembering
from tests.lua.transaction import NONE, OUT_OF_ORDER_SEQUENCE_NUMBER, TransactionLog
from tests.store.logs import NAMESPACE, batch
from tests.support.ported import kafka

DAY_S = 86_400
FIRST = 1_700_000_000_000_000


@pytest.fixture
def log(server: redis.Redis, set_clock: Clock) -> Remembering:
    return Remembering(server, set_clock)


def test_partition_remembers_an_active_producer(log: Remembering) -> None:
    for hour in range(6):
        log.go_to(hour)
        assert log.plain(1, (1, 0, hour)).code == NONE
        log.sweep()
    assert log.producer_ids() == {1}


def test_partition_forgets_closed_transactions_with_their_producers(log: Remembering) -> None:
    for producer_id in range(300):
        log.write(1, (producer_id, 0, 0), FIRST + producer_id)
        log.mark((producer_id, 1), FIRST + producer_id)
    for hour in range(4):
        log.go_to(hour)
        log.sweep()
    assert log.producer_ids() == set()
    assert log.server.hkeys(log.transactions) == [b""]


def test_longer_expiration_holds_from_the_first_sweep_with_it(log: Remembering) -> None:
    log.plain(1, (1, 0, 0))
    log.sweep()
    log.go_to(0.9)
    log.plain(1, (2, 0, 0))
    log.go_to(1.8)
    log.sweep(24 * HOUR_MS)
    assert log.producer_ids() == {1, 2}
    log.go_to(23.9)
    log.sweep(24 * HOUR_MS)
    assert log.producer_ids() == {1, 2}
    for hour in (24.5, 49):
        log.go_to(hour)
        log.sweep(24 * HOUR_MS)
    assert log.producer_ids() == set()


def test_appends_forget_producers_by_the_last_expiration(log: Remembering) -> None:
    other = TransactionLog(log.server, "{default:t:1}")
    assert other.create() == NONE
    log.sweep()
    for hour in (0, 1.1, 2.2, 3.3):
        log.go_to(hour)
        for partition in (log, other):
            assert partition.plain(1, (round(10 * hour), 0, 0)).code == NONE
    assert log.producer_ids() == {33}
    assert other.producer_ids() == {0, 11, 22, 33}, "a day where nobody asked"


def test_library_reads_notes_of_the_former_version(log: Remembering) -> None:
    log.plain(1, (1, 0, 0))
    noted_ms = int(START_S * 1000)
    log.server.hset(log.producers, "", f"0 0 {noted_ms} 1")
    log.go_to(24)
    log.plain(1, (2, 0, 0))
    assert log.producer_ids() == {2}
    assert log.server.hget(log.producers, "") == b"0 1 %d 2 86400000" % (noted_ms + DAY_S * 1000)


def test_sweep_writes_nothing_to_a_partition_without_producers(log: Remembering) -> None:
    log.sweep()
    before = [log.server.dump(key) for key in log.keys]
    log.go_to(5)
    log.sweep()
    assert [log.server.dump(key) for key in log.keys] == before
    log.plain(1, (1, 0, 0))
    for hour in (5.5, 5.9, 6):
        assert log.producer_ids() == {1}
        log.go_to(hour)
        log.sweep()
    assert log.producer_ids() == set()


def test_sweep_leaves_the_partition_of_another_topic_alone(log: Remembering) -> None:
    before = log.dump()
    assert log.call("korvet_log_forget_producers", "b" * 32, HOUR_MS, 1) == [GONE, 0]
    assert log.dump() == before


@pytest.mark.parametrize("wrong", [2, 3, 4, 5])
def test_key_of_another_type_prevents_every_write(log: Remembering, wrong: int) -> None:
    log.server.delete(log.keys[wrong])
    log.server.set(log.keys[wrong], "text")
    before = log.dump()
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        log.sweep()
    assert log.dump() == before


def test_every_partition_follows_the_configured_expiration(server: redis.Redis, loop: Loop, set_clock: Clock) -> None:
    """Partitions without retention follow it too. An hour is more than the longest transaction, a minute is less."""
    set_clock(START_S)
    one = loop.front
    topic = loop.run(one.topic, 2)
    partitions = [one.log.partition(topic, index) for index in range(2)]
    for index, partition in enumerate(partitions):
        assert loop.run(one.append, partition, batch(producer=index, sequence=0)) == (0, 0)

    def remembered(at_s: float, *times_s: float) -> list[bool]:
        for time_s in (at_s, *times_s):
            set_clock(START_S + time_s)
            loop.run(enforce_retention, NAMESPACE, one.catalog, one.log)
        return [bool(server.hexists(of.keys.producers, str(index))) for index, of in enumerate(partitions)]

    assert remembered(0, DAY_S - 1) == [True, True]
    for setting in (f"{HOUR_MS}", "60000"):
        change = ConfigChange(set={"producer.id.expiration.ms": setting})
        assert loop.run(one.catalog.configure_cluster, change) == 0
        loop.run(one.catalog.refresh)
        noted = {server.hget(of.keys.producers, "").split()[-1] for of in partitions}  # type: ignore[union-attr]
        assert noted == {b"86400000" if setting == f"{HOUR_MS}" else b"3600000"}
        loop.run(enforce_retention, NAMESPACE, one.catalog, one.log)
        assert {server.hget(of.keys.producers, "").split()[-1] for of in partitions} == {  # type: ignore[union-attr]
            b"%d" % max(int(setting), 900_000)
        }
    assert remembered(DAY_S + 1000, DAY_S + 2000, DAY_S + 3000) == [False, False]


@pytest.mark.parametrize(
    ("configs", "seconds"), [({}, 7 * DAY_S), ({"transactional.id.expiration.ms": f"{HOUR_MS}"}, 3600)], ids=str
)
def test_unused_transactional_id_expires_as_the_config_says(
    server: redis.Redis, loop: Loop, set_clock: Clock, configs: Mapping[str, str], seconds: int
) -> None:
    set_clock(START_S)
    transactions = loop.run(_transactions, loop, configs)
    code, producer_id, _ = loop.run(transactions.init, "unused", 60_000, -1, -1)
    assert (code, producer_id >= 0) == (NONE, True)
    key = NAMESPACE.transaction("unused").id
    kept = []
    for after_s in (0, seconds - 1, seconds + 1):
        set_clock(START_S + after_s)
        loop.run(transactions.tend, "unused")
        kept.append(bool(server.exists(key)))
    assert kept == [True, True, False]


async def _transactions(loop: Loop, configs: Mapping[str, str]) -> Transactions:
    one = loop.front
    catalog = Catalog(NAMESPACE, one.store, one.wakeups, configs)
    groups = Groups(NAMESPACE, one.store, catalog, one.wakeups, Outages(one.store), one.log)
    return Transactions(NAMESPACE, one.store, catalog, one.log, groups)


@kafka("ProducerStateManagerTest.testPidExpirationTimeout")
def test_forgotten_producer_may_go_on_with_any_sequence(log: Remembering) -> None:
    log.plain(1, (1, 5, 0))
    log.sweep()
    log.go_to(0.99)
    log.sweep()
    assert log.plain(1, (1, 5, 2)).code == OUT_OF_ORDER_SEQUENCE_NUMBER
    log.go_to(1)
    log.sweep()
    assert log.producer_ids() == set()
    assert log.plain(1, (1, 5, 1)).code == NONE
    assert log.state_of(1) == "5 0|1,1,1"


@kafka("UnifiedLogTest.testPeriodicProducerIdExpiration")
def test_partition_remembers_a_producer_for_one_to_two_expirations(log: Remembering) -> None:
    """The sweep alone forgets the producer, without any append."""
    log.sweep()
    log.go_to(0.5)
    log.plain(1, (1, 0, 0))
    remembered = {}
    for minutes in range(35, 200, 5):
        log.go_to(minutes / 60)
        log.sweep()
        remembered[minutes] = 1 in log.producer_ids()
    assert all(remembered[minutes] for minutes in range(35, 90, 5))
    assert not any(remembered[minutes] for minutes in range(155, 200, 5))


@kafka("ProducerStateManagerTest.testProducersWithOngoingTransactionsDontExpire")
@kafka("ProducerStateManagerTest.testProducerStateAfterFencingAbortMarker")
def test_open_transaction_or_fencing_marker_keeps_its_producer(log: Remembering) -> None:
    log.write(1, (1, 5, 0), FIRST)
    log.write(1, (2, 5, 0), FIRST + 1)
    for hour in range(1, 5):
        log.go_to(hour)
        log.sweep()
    assert (log.producer_ids(), log.first_open()) == ({1, 2}, 0)
    # The marker of a newer epoch counts as a sign of its producer.
    log.mark((2, 6), FIRST + 1, "abort")
    log.sweep()
    assert log.described()[2] == [6, -1, 1000, -1, -1, "app"]
    assert log.plain(1, (2, 5, 1)).code == 47
