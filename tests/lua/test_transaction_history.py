"""A shard of transactional ids that lost writes in a failover, while partitions on other nodes kept theirs.

The tests restore the shard's former keys. The lost server had another run id than the present one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import redis

from tests.lua.log import TOPIC_ID
from tests.lua.transaction import (
    FRESH_ID,
    INVALID_PRODUCER_ID_MAPPING,
    INVALID_TXN_STATE,
    LAST_EPOCH,
    NONE,
    ProducerReply,
    Transactional,
)
from tests.lua.transaction_scene import Scene

GONE = "f" * 40
"""The run id of the lost server."""


class Shard(Transactional):
    """A transactional id on a server that can be lost with its last writes."""

    def kept(self) -> list[Any]:
        return [self.server.dump(key) for key in self.keys]

    def fails_over(self, kept: list[Any] | None = None) -> None:
        """Another server goes on with the keys that it got; with all keys unless others are given."""
        for key, dumped in zip(self.keys, kept or self.kept(), strict=True):
            self.server.restore(key, 0, dumped, replace=True)
        self.server.hset(self.keys[0], "replid", GONE)


@pytest.fixture
def app(server: redis.Redis, set_clock: Callable[[float], None]) -> Shard:
    return Shard(server, set_clock)


@pytest.fixture
def scene(server: redis.Redis, set_clock: Callable[[float], None]) -> Scene:
    scene = Scene(server, set_clock)
    scene.app = Shard(server, set_clock)
    return scene


def finished(scene: Scene, told: ProducerReply) -> None:
    assert told.decision is not None
    scene.finish(told.decision)


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("named", [False, True])
def test_restarted_producer_gets_an_unused_producer_id(scene: Scene, version: int, named: bool) -> None:
    app = scene.app
    assert isinstance(app, Shard)
    producer = app.init().producer
    kept = app.kept()
    last = producer if named and version == 1 else app.init().producer
    scene.run(last, 5)
    told = app.end(last, "commit", version)
    finished(scene, told)
    scene.reset(version)
    scene.run(told.producer, 6)
    finished(scene, app.end(told.producer, "commit", version))
    app.fails_over(kept)

    again = app.init(producer if named else (-1, -1))
    assert (again.code, again.epoch) == (NONE, 0)
    assert again.producer_id > last[0]
    if named:
        assert app.init(producer) == again
    scene.reset(2)
    scene.run(again.producer, 9)
    finished(scene, app.end(again.producer, "commit", version))
    assert scene.ends() == ["6", "6"], "none of it was taken for a batch of the lost producer"
    assert scene.group.committed() == {"in:0": "9"}
    assert app.add(last, {"t:0": TOPIC_ID}).code == INVALID_PRODUCER_ID_MAPPING


@pytest.mark.parametrize("outcome", ["commit", "abort"])
def test_second_decision_of_a_lost_end_gives_no_used_epoch(scene: Scene, outcome: str) -> None:
    app = scene.app
    assert isinstance(app, Shard)
    producer = app.init().producer
    scene.run(producer, 5)
    kept = app.kept()
    first = app.end(producer, outcome)
    finished(scene, first)
    scene.reset(2)
    scene.run(first.producer, 6)
    app.fails_over(kept)

    second = app.end(producer, outcome)
    assert (second.code, second.epoch) == (NONE, 0)
    assert second.producer_id > producer[0]
    finished(scene, second)
    assert app.end(producer, outcome) == (NONE, *second.producer, None)
    scene.reset(2)
    scene.run(second.producer, 7)
    assert [log.open_transactions().keys() for log in scene.logs.values()] == [{producer[0], second.producer_id}] * 2


def test_first_end_after_a_server_restart_gives_a_new_producer_id(app: Shard) -> None:
    producer, _ = app.begun()
    app.fails_over()
    told = app.end(producer)
    assert (told.code, told.epoch) == (NONE, 0)
    assert told.producer_id > producer[0]
    assert told.decision is not None
    assert told.decision[1:3] == (producer[0], producer[1] + 1)
    app.complete(told.decision.ordinal)
    app.add(told.producer, {"t:0": TOPIC_ID})
    assert app.end(told.producer).producer == (told.producer_id, 1)


def test_end_of_version_1_keeps_its_epoch_after_a_restart(app: Shard) -> None:
    producer, _ = app.begun()
    app.fails_over()
    assert app.end(producer, version=1).producer == producer


@pytest.mark.parametrize("outcome", ["commit", "abort"])
def test_repeated_end_after_a_failover_gives_a_new_producer_id(app: Shard, outcome: str) -> None:
    producer = app.ended(outcome)
    app.fails_over()
    fresh = app.server.fcall("korvet_txn_end", 2, *app.keys, "app", *producer, outcome, 2, -1)
    assert fresh == [FRESH_ID, -1, -1]
    told = app.end(producer, outcome)
    assert (told.code, told.epoch, told.decision) == (NONE, 0, None)
    assert told.producer_id > producer[0]
    assert app.end(producer, outcome) == told
    other = "abort" if outcome == "commit" else "commit"
    assert app.end(producer, other).code == INVALID_TXN_STATE
    assert app.describe()["state"] == f"Complete{outcome.capitalize()}"


def test_timed_out_producer_gets_no_epoch_that_may_be_in_use(app: Shard) -> None:
    producer, ordinal = app.begun()
    app.fails_over()
    app.pass_time(61)
    assert app.expire() is not None
    app.complete(ordinal)
    told = app.end(producer, "abort")
    assert (told.code, told.epoch) == (NONE, 0)
    assert told.producer_id > producer[0]


def test_producer_id_given_before_a_failover_gets_no_second_epoch(app: Shard) -> None:
    producer = app.init().producer[0], LAST_EPOCH - 1
    app.field("producer_epoch", LAST_EPOCH - 1)
    app.add(producer, {"t:0": TOPIC_ID})
    told = app.end(producer)
    assert told.decision is not None
    app.fails_over()
    app.complete(told.decision.ordinal)
    assert app.end(producer).producer_id > told.producer_id
    assert app.init().epoch == 1


def test_ordinals_begin_above_the_lost_ones(scene: Scene) -> None:
    app = scene.app
    assert isinstance(app, Shard)
    producer = app.init().producer
    kept = app.kept()
    scene.run(producer, 5)
    told = app.end(producer, "commit", 1)
    finished(scene, told)
    app.fails_over(kept)
    app.pass_time(0.001)
    scene.run(producer, 6)
    second = app.end(producer, "commit", 1).decision
    assert told.decision is not None
    assert second is not None
    assert second.ordinal > told.decision.ordinal
    scene.finish(second)
    assert scene.group.committed() == {"in:0": "6"}
    assert scene.ends() == ["4", "4"]


def test_full_server_ends_a_transaction_with_a_new_producer_id(app: Shard) -> None:
    producer, _ = app.begun()
    app.fails_over()
    app.server.config_set("maxmemory", 1)
    catalog = [f"korvet:{{default:@catalog}}:{name}" for name in ("meta", "topics", "configs")]
    _, fresh_id = app.server.fcall("korvet_producer_id", 3, *catalog)
    code, *goes_on = app.server.fcall("korvet_txn_end", 2, *app.keys, "app", *producer, "commit", 2, fresh_id)[:3]
    assert (code, goes_on) == (NONE, [fresh_id, 0])


def test_transactional_id_without_a_replid_gets_a_new_producer_id(app: Shard) -> None:
    producer_id, _ = app.init().producer
    app.server.hdel(app.keys[0], "replid")
    told = app.init()
    assert (told.code, told.epoch) == (NONE, 0)
    assert told.producer_id > producer_id
    assert app.init().producer == (told.producer_id, 1)
