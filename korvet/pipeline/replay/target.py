"""The topic that gets the records: checks that it exists, and takes them."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Final

import structlog

from korvet.pipeline.broker import Broker, Topic
from korvet.pipeline.errors import PipelineError, UnknownTopic
from korvet.pipeline.plan.judged import Judged
from korvet.pipeline.replay.config import ReplayConfig
from korvet.pipeline.replay.positions import GROUP_PREFIX
from korvet.pipeline.reported import ARCHIVE_GROUP

log = structlog.get_logger()

_UNLIMITED: Final = 2**63 - 1


def refuse_loop(broker: Broker, config: ReplayConfig) -> None:
    """Refuse to replay into the archived topic itself: the archive would then hold the records twice.

    :raises PipelineError:
    """
    if config.target != config.topic or config.into_archived:
        return
    if any(topic == config.target for topic, _ in broker.committed(ARCHIVE_GROUP)):
        raise PipelineError(
            f"topic {config.target} is archived: its lake would hold these records a second time, under new offsets; "
            "name another topic to replay to, or allow this one (into archived)"
        )


def refuse_other_target(broker: Broker, name: str, target: str) -> None:
    """Refuse a name that another target has: positions and transactional ids belong to the name.

    :raises PipelineError:
    """
    others = sorted({topic for topic, _ in broker.committed(GROUP_PREFIX + name)} - {target})
    if others:
        raise PipelineError(f"replay {name} was begun with topic {others[0]}; choose another name")


def find_target(broker: Broker, config: ReplayConfig) -> Topic | None:
    """The topic; None if it is missing and the replay may create it.

    :raises UnknownTopic:
    """
    try:
        return broker.topics([config.target])[config.target]
    except UnknownTopic:
        if config.create:
            return None
        raise UnknownTopic(
            f"topic {config.target} does not exist at {config.bootstrap_servers}; create it, or let the replay do so "
            "(create)"
        ) from None


def create_target(broker: Broker, config: ReplayConfig, partitions: int) -> Topic:
    """The new topic, which keeps the records' timestamps."""
    broker.create_topic(config.target, partitions, {"retention.ms": "-1"})
    log.info("topic created", topic=config.target, partitions=partitions, retention_ms=-1)
    return broker.topics([config.target])[config.target]


def refuse_missing_partitions(target: Topic, partitions: Sequence[int]) -> None:
    """Refuse a topic without a partition of each number: records keep their partition.

    :param partitions: at least one, in order.
    :raises PipelineError:
    """
    if partitions[-1] >= len(target.partitions):
        raise PipelineError(
            f"topic {target.name} has {len(target.partitions)} partitions, and there are records of partition "
            f"{partitions[-1]}; give it {partitions[-1] + 1}, or choose partitions"
        )


def refuse_new_topic(broker: Broker, name: str, topic_id: str) -> None:
    """Refuse a topic that was recreated meanwhile: it has only the last records, and producers do not notice.

    :raises PipelineError:
    """
    if broker.topics([name])[name].id != topic_id:
        raise PipelineError(
            f"topic {name} was deleted and created anew while records were written to it, so that it has only a part "
            "of them; delete and create it once more, and start the replay again"
        )


def refuse_refused(target: str, settings: Mapping[str, str], judged: Judged) -> None:
    """Refuse records that the broker would refuse, before anything is written.

    :raises PipelineError:
    """
    if _has_append_time(settings):
        return
    age_ms, ahead_ms = _ages(judged)
    for side, what, worst, ms in (
        ("before", "older", f"the oldest is {age_ms} ms old", age_ms),
        ("after", "further ahead", f"the newest is {ahead_ms} ms ahead", ahead_ms),
    ):
        name = f"message.timestamp.{side}.max.ms"
        limit_ms = _ms(settings, name)
        if limit_ms is not None and ms > limit_ms:
            raise PipelineError(
                f"topic {target} takes no record that is {what} than {name}={limit_ms}, and {worst}; raise that "
                "setting well above it, or choose a shorter range"
            )


def warn(target: str, settings: Mapping[str, str], judged: Judged) -> None:
    """Warn of records that the topic will keep otherwise than the lake."""
    age_ms, _ = _ages(judged)
    kept_ms = _ms(settings, "retention.ms") if "delete" in settings.get("cleanup.policy", "delete") else None
    if _has_append_time(settings):
        log.warning("timestamps are not kept: the topic has the time of the append instead", topic=target)
    elif kept_ms is not None and age_ms > kept_ms:
        log.warning(
            "records are older than the topic keeps them, and may be gone at once",
            topic=target, oldest_is_ms_old=age_ms, retention_ms=kept_ms,
        )  # fmt: skip
    if judged.timeless:
        log.warning("records of 1970-01-01T00:00:00Z get the present time", topic=target, records=judged.timeless)


def _has_append_time(settings: Mapping[str, str]) -> bool:
    return settings.get("message.timestamp.type") == "LogAppendTime"


def _ages(judged: Judged) -> tuple[int, int]:
    """How old the oldest record is, and how far ahead of now the newest one, in ms."""
    now_ms = int(time.time() * 1000)
    return now_ms - judged.oldest_ms, judged.newest_ms - now_ms


def _ms(settings: Mapping[str, str], name: str) -> int | None:
    value = int(settings.get(name, _UNLIMITED))
    return value if 0 <= value < _UNLIMITED else None
