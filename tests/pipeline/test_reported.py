"""The lake that a topic belongs to, by the offsets that archives commit. Without Spark."""

from __future__ import annotations

from korvet.pipeline.broker import Broker, Position
from korvet.pipeline.lake import Proven
from korvet.pipeline.reported import ARCHIVE_GROUP, bind, report
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
            return bind(client, proven(topic, *offsets), (0, 1), lake, take_over=take_over)

        # Korvet up to 0.7 named no lake.
        client.commit(ARCHIVE_GROUP, {(topic, 0): Position(offset=1, leader_epoch=0)})
        assert archive("one", 2, 0)
        assert not archive("scratch", 9, 9)
        assert committed(client, topic) == {0: 2, 1: 0}
        # The lake that the topic belongs to goes on, also after a start.
        report(client, proven(topic, 3, 1), "one")
        assert archive("one", 4, 1) and committed(client, topic) == {0: 4, 1: 1}
        assert archive("scratch", 2, 0, take_over=True) and committed(client, topic) == {0: 2, 1: 0}
        assert not archive("one", 5, 5) and committed(client, topic) == {0: 2, 1: 0}
