"""The lake that a topic belongs to, by the offsets that archives commit. Without Spark."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from korvet.pipeline.archive import ArchiveConfig
from korvet.pipeline.archive.batch import TopicWriter
from korvet.pipeline.broker import Broker, Position
from korvet.pipeline.plan.proofs import Proven
from korvet.pipeline.reported import ARCHIVE_GROUP, report
from tests.pipeline.sourcing import create
from tests.support.broker import KorvetServer


def proven(topic: str, *offsets: int) -> Proven:
    return Proven(topic=topic, topic_id="id", generation=1, batch_id=0, offsets=dict(enumerate(offsets)))


def committed(broker: Broker, topic: str) -> dict[int, int]:
    told = broker.committed(ARCHIVE_GROUP, partitions=[(topic, number) for number in range(2)])
    return {number: position.offset for (_, number), position in told.items()}


def test_topic_belongs_to_the_first_lake_until_another_one_takes_over(broker: KorvetServer) -> None:
    topic = "reported-lakes"
    create(broker, topic, 2)
    with Broker({"bootstrap.servers": broker.bootstrap}) as client:

        def archive(lake: str, *offsets: int, take_over: bool = False) -> bool:
            return report(client, proven(topic, *offsets), lake, (0, 1), take_over=take_over)

        # Korvet up to 0.7 named no lake.
        client.commit(ARCHIVE_GROUP, {(topic, 0): Position(offset=1, leader_epoch=0)})
        assert archive("one", 2, 0)
        assert not archive("scratch", 9, 9)
        assert committed(client, topic) == {0: 2, 1: 0}
        # The lake that the topic belongs to goes on.
        assert archive("one", 4, 1) and committed(client, topic) == {0: 4, 1: 1}
        assert archive("scratch", 2, 0, take_over=True) and committed(client, topic) == {0: 2, 1: 0}
        assert not archive("one", 5, 5) and committed(client, topic) == {0: 2, 1: 0}


def test_archive_that_runs_reports_nothing_after_another_lake_took_its_topic_over(broker: KorvetServer) -> None:
    name = "reported-running"
    create(broker, name)
    nothing: Any = None
    with Broker({"bootstrap.servers": broker.bootstrap}) as client:
        topic = client.topics([name])[name]

        def writer(lake: str, *, take_over: bool = False) -> TopicWriter:
            raw = SimpleNamespace(id=lake, proven=proven(name, 1))
            tables: Any = SimpleNamespace(raw=raw, typed=nothing, dead_letters=nothing)
            config = ArchiveConfig(bootstrap_servers=broker.bootstrap, lake=lake, topics=(name,), take_over=take_over)
            return TopicWriter(nothing, config, topic, tables, client)

        first, other = writer("one"), writer("other", take_over=True)
        for each in (first, first, other, first, first):
            each.report()
        (position,) = client.committed(ARCHIVE_GROUP, partitions=[(name, 0)]).values()
        assert position.metadata == "lake other"
