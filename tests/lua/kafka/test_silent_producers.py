"""Expiration of producers in partitions: cases of Kafka's ProducerStateManagerTest and UnifiedLogTest."""

from __future__ import annotations

import pytest
import redis

from tests.lua.remembering import Clock, Remembering
from tests.lua.transaction import NONE, OUT_OF_ORDER_SEQUENCE_NUMBER
from tests.support.ported import kafka

FIRST = 1_700_000_000_000_000


@pytest.fixture
def log(server: redis.Redis, set_clock: Clock) -> Remembering:
    return Remembering(server, set_clock)


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
