"""InitProducerId against a real front-end, as Apache Kafka 4.1.2 answers it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.api.raw import ask, unique
from tests.support.broker import KorvetServer
from tests.support.ported import kafka

VERSIONS = range(6)


def init(broker: KorvetServer, version: int = 5, **values: Any) -> tuple[str, int, int]:
    request = {"transactional_id": None, "transaction_timeout": 60_000, "producer_id": -1, "producer_epoch": -1}
    answer = ask(broker.port, "init_producer_id", version, **(request | values))
    return answer["error_code"], answer["producer_id"], answer["producer_epoch"]


@kafka("TransactionCoordinatorTest.shouldAcceptInitPidAndReturnNextPidWhenTransactionalIdIsNull")
@pytest.mark.parametrize("version", VERSIONS)
def test_every_producer_gets_an_id_of_its_own(broker: KorvetServer, version: int) -> None:
    answers = [init(broker, version) for _ in range(20)]
    assert {(code, epoch) for code, _, epoch in answers} == {("NONE", 0)}
    ids = [producer_id for _, producer_id, _ in answers]
    assert ids == sorted(set(ids))


def test_a_producer_that_has_an_id_gets_a_new_one(broker: KorvetServer) -> None:
    _, first, _ = init(broker)
    code, second, epoch = init(broker, producer_id=first, producer_epoch=3)
    assert (code, epoch) == ("NONE", 0)
    assert second > first


@pytest.mark.parametrize("version", [3, 4, 5])
def test_an_id_without_an_epoch_is_invalid(broker: KorvetServer, version: int) -> None:
    assert init(broker, version, producer_id=5) == ("INVALID_REQUEST", -1, -1)
    assert init(broker, version, producer_epoch=5) == ("INVALID_REQUEST", -1, -1)


@kafka("TransactionCoordinatorTest.shouldReturnInvalidRequestWhenTransactionalIdIsEmpty")
@pytest.mark.parametrize("version", VERSIONS)
def test_a_transactional_id_keeps_its_producer_id(broker: KorvetServer, version: int) -> None:
    name = unique("txn")
    first, second = init(broker, version, transactional_id=name), init(broker, version, transactional_id=name)
    assert first == ("NONE", first[1], 0)
    assert second == ("NONE", first[1], 1)
    assert init(broker, version, transactional_id="") == ("INVALID_REQUEST", -1, -1)
