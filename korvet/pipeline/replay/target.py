"""The topic that gets the records: checks that it exists, and takes them."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from typing import Final

import structlog

from korvet.pipeline.broker import Broker, Topic
from korvet.pipeline.errors import PipelineError, UnknownTopic
from korvet.pipeline.replay.config import ReplayConfig
from korvet.pipeline.replay.positions import GROUP_PREFIX
from korvet.pipeline.replay.table import Judged, Limits
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


def limits(settings: Mapping[str, str]) -> Limits:
    """The limits of timestamps that the topic's settings mean now."""
    now_ms = int(time.time() * 1000)
    if settings.get("message.timestamp.type") == "LogAppendTime":
        return Limits(oldest_ms=None, newest_ms=None, kept_from_ms=None)
    before, after = (_ms(settings, f"message.timestamp.{side}.max.ms") for side in ("before", "after"))
    kept = _ms(settings, "retention.ms") if "delete" in settings.get("cleanup.policy", "delete") else None
    return Limits(
        oldest_ms=now_ms - before if before is not None else None,
        newest_ms=now_ms + after if after is not None else None,
        kept_from_ms=now_ms - kept if kept is not None else None,
    )


def refuse_missing_partitions(target: Topic, partitions: Collection[int]) -> None:
    """Refuse a topic without a partition of each number: records keep their partition.

    :raises PipelineError:
    """
    missing = sorted(set(partitions) - set(target.partitions))
    if missing:
        raise PipelineError(
            f"topic {target.name} has {len(target.partitions)} partitions, and there are records of partition "
            f"{missing[-1]}; give it {missing[-1] + 1}, or choose partitions"
        )


def refuse_new_topic(broker: Broker, name: str, topic_id: str) -> None:
    """Refuse a topic created anew meanwhile: it has only the last records, and no producer was told.

    :raises PipelineError:
    """
    if broker.topics([name])[name].id != topic_id:
        raise PipelineError(
            f"topic {name} was deleted and created anew while records were written to it, so that it has only a part "
            "of them; delete and create it once more, and start the replay again"
        )


def refuse_refused(target: str, settings: Mapping[str, str], judged: Collection[Judged]) -> None:
    """Refuse records that the broker would refuse, before anything is written.

    :raises PipelineError:
    """
    for count, side, what in (
        (sum(each.too_old for each in judged), "before", "older"),
        (sum(each.too_new for each in judged), "after", "further ahead"),
    ):
        if count:
            name = f"message.timestamp.{side}.max.ms"
            raise PipelineError(
                f"topic {target} takes no record that is {what} than {name}={settings[name]}, and {count:,} are; "
                "raise that setting, or choose a shorter range"
            )


def warn(target: str, settings: Mapping[str, str], judged: Collection[Judged]) -> None:
    """Warn of records that the topic will keep otherwise than the lake."""
    if settings.get("message.timestamp.type") == "LogAppendTime":
        log.warning("timestamps are not kept: the topic has the time of the append instead", topic=target)
    short_lived = sum(each.short_lived for each in judged)
    if short_lived:
        log.warning(
            "records are older than the topic keeps them, and may be gone at once",
            topic=target, records=short_lived, retention_ms=int(settings["retention.ms"]),
        )  # fmt: skip
    timeless = sum(each.timeless for each in judged)
    if timeless:
        log.warning("records of 1970-01-01T00:00:00Z get the present time", topic=target, records=timeless)


def _ms(settings: Mapping[str, str], name: str) -> int | None:
    value = int(settings.get(name, _UNLIMITED))
    return value if 0 <= value < _UNLIMITED else None
