"""The topic that gets the records: checks that it exists, and takes them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import structlog

from korvet.pipeline.broker import Broker, Topic
from korvet.pipeline.errors import PipelineError, UnknownTopic
from korvet.pipeline.replay.config import GROUP_PREFIX, ReplayConfig
from korvet.pipeline.replay.table import Span
from korvet.pipeline.reported import ARCHIVE_GROUP

log = structlog.get_logger()


def find_target(broker: Broker, config: ReplayConfig, name: str, partitions: Callable[[], int]) -> Topic:
    """The topic, created if necessary.

    :param name: the replay's.
    :param partitions: the number of partitions of a new topic.
    :raises UnknownTopic: it is missing.
    :raises PipelineError: its archive is the source: that would then hold the records twice. Or the replay was begun
    with another topic: positions and transactional ids belong to the name.
    """
    target = config.target
    is_source = target == config.topic and not config.into_archived
    if is_source and any(topic == target for topic, _ in broker.committed(ARCHIVE_GROUP)):
        raise PipelineError(
            f"topic {target} is archived: its lake would hold these records a second time, under new offsets; name "
            "another topic to replay to, or allow this one (into archived)"
        )
    others = sorted({topic for topic, _ in broker.committed(GROUP_PREFIX + name)} - {target})
    if others:
        raise PipelineError(f"replay {name} was begun with topic {others[0]}; choose another name")
    try:
        return broker.topics([target])[target]
    except UnknownTopic:
        if not config.create:
            raise UnknownTopic(
                f"topic {target} does not exist at {config.bootstrap_servers}; create it, or let the replay do so "
                "(create)"
            ) from None
    # Old records would vanish at once.
    broker.create_topic(target, count := partitions(), {"retention.ms": "-1"})
    log.info("topic created", topic=target, partitions=count, retention_ms=-1)
    return broker.topics([target])[target]


def check_target(broker: Broker, topic: Topic, left: Mapping[int, Span]) -> None:
    """Warn of records that the topic will keep otherwise than the lake.

    :raises PipelineError: it lacks a partition: records keep theirs.
    """
    last = max(left, default=-1)
    if last >= len(topic.partitions):
        raise PipelineError(
            f"topic {topic.name} has {len(topic.partitions)} partitions, and there are records of partition {last}; "
            f"give it {last + 1}, or choose partitions"
        )
    settings = broker.topic_settings(topic.name)
    kept_ms = int(settings.get("retention.ms", -1)) if "delete" in settings.get("cleanup.policy", "delete") else -1
    now_ms = int(time.time() * 1000)
    age_ms = max((now_ms - span.oldest_ms for span in left.values()), default=0)
    if settings.get("message.timestamp.type") == "LogAppendTime":
        log.warning("timestamps are not kept: the topic has the time of the append instead", topic=topic.name)
    elif 0 <= kept_ms < age_ms:
        log.warning(
            "records are older than the topic keeps them, and may be gone at once",
            topic=topic.name, oldest_is_ms_old=age_ms, retention_ms=kept_ms,
        )  # fmt: skip


def refuse_new_topic(broker: Broker, name: str, topic_id: str) -> None:
    """Refuse a topic that was recreated meanwhile: it has only the last records, and producers do not notice.

    :raises PipelineError:
    """
    if broker.topics([name])[name].id != topic_id:
        raise PipelineError(
            f"topic {name} was deleted and created anew while records were written to it, so that it has only a part "
            "of them; delete and create it once more, and start the replay again"
        )
