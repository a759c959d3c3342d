"""The configuration of a replay, the note of its position, its progress and result, and checks of its target."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from time import time
from typing import Final

import structlog

from korvet.pipeline.errors import PipelineError

log = structlog.get_logger()

Offsets = int | Mapping[int, int]
"""One offset for all partitions, or an offset for each named partition."""
GROUP_PREFIX: Final = "korvet-replay-"
"""Of the group of a replay, whose offsets are its positions."""
_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,200}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayConfig:
    """The records to replay, the topic that gets them, and the rate.

    :param bootstrap_servers: the brokers that get the records.
    :param tier: a tier's directory or URL, whose segments of ``topic`` are copied; ``tier_namespace`` is the topic's.
    :param lake: else, a lake's location; the rows come from its raw table of ``topic``.
    :param to: the topic that gets the records; None means the topic of the same name.
    :param partitions: only these partitions; none means all.
    :param from_offset: the first offset in the source; ``to_offset``: the first offset past the range.
    :param from_time: records of this time or later; ``to_time``: records before it. Both have a time zone. Of a tier
    it is the range of offsets between the first record of the one time or later and the first one of the other.
    :param rate: records/s at most, over all partitions.
    :param name: the name under which the replay can be resumed. The default is derived from the table, the range and
    the target, so that the same command resumes it.
    :param version: the table's version; the default is the newest at the first start, also for a restart.
    :param create: create the topic if it is missing.
    :param into_archived: allow the archived topic itself as the target; lake or tier then get the records twice.
    :param client: Kafka client settings by the Java client's names.
    :raises PipelineError: if a value is not valid.
    """

    bootstrap_servers: str
    topic: str
    tier: str | None = None
    tier_namespace: str = "default"
    lake: str | None = None
    to: str | None = None
    partitions: tuple[int, ...] | None = None
    from_offset: Offsets | None = None
    to_offset: Offsets | None = None
    from_time: datetime | None = None
    to_time: datetime | None = None
    rate: float | None = None
    name: str | None = None
    version: int | None = None
    create: bool = False
    into_archived: bool = False
    client: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if (self.tier is None) == (self.lake is None):
            raise PipelineError("give a tier, or a lake: one of them holds the records to replay")
        if self.rate is not None and not self.rate > 0:
            raise PipelineError(f"rate {self.rate}: a number of records/s above 0 is needed; leave it out for no limit")
        if self.name is not None and not _NAME.fullmatch(self.name):
            raise PipelineError(f"name {self.name!r}: up to 200 letters, digits, '.', '_' and '-' make a replay's name")
        for what, at in (("from", self.from_time), ("to", self.to_time)):
            if at is not None and at.tzinfo is None:
                raise PipelineError(f"{what} {at.isoformat()}: a time needs a time zone, as 2026-01-31T12:00:00Z")

    @property
    def target(self) -> str:
        return self.to or self.topic

    @property
    def is_whole(self) -> bool:
        """True if the range is the whole table."""
        bounds = (self.partitions, self.from_offset, self.to_offset, self.from_time, self.to_time)
        return all(bound is None for bound in bounds)

    def digest(self, source_id: str) -> str:
        """Twelve characters, equal for the same records to the same topic.

        :param source_id: the table's id, or the id of the tier's topic.
        """
        parts = [
            source_id,
            self.target,
            sorted(set(self.partitions)) if self.partitions is not None else None,
            _written(self.from_offset),
            _written(self.to_offset),
            self.from_time.timestamp() if self.from_time else None,
            self.to_time.timestamp() if self.to_time else None,
        ]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:12]


def _written(offsets: Offsets | None) -> int | list[tuple[int, int]] | None:
    return sorted(offsets.items()) if isinstance(offsets, Mapping) else offsets


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """The metadata of a position, which is an offset in the source, committed for a partition of the target.

    :param job: the digest of source, range and target.
    :param topic_id: of the target: records in a deleted topic do not count.
    :param records: records of this partition that all runs have written so far.
    :param run: the run that wrote this; later runs have greater names.
    """

    job: str
    topic_id: str
    records: int
    run: str = ""

    def to_json(self) -> str:
        return json.dumps({"korvet.replay": asdict(self)}, separators=(",", ":"))

    @classmethod
    def of(cls, metadata: str) -> Note | None:
        """The note in the metadata of a committed offset; None if there is none."""
        try:
            found = json.loads(metadata)["korvet.replay"]
            return cls(**{name: found[name] for name in ("job", "topic_id", "records")}, run=found.get("run", ""))
        except (ValueError, KeyError, TypeError):
            return None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayProgress:
    """Progress: of ``total`` records, ``records`` are in the topic, with the records of former runs.

    With a tier both are offsets, of which some have no records.
    """

    name: str
    records: int
    total: int
    records_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayResult:
    """The outcome of a run.

    :param version: the table's version that the run read; None with a tier.
    :param records: records that this run wrote; ``total``: records of the range, or its offsets with a tier.
    :param complete: all of the range is in the topic; else the same command continues.
    """

    name: str
    target: str
    version: int | None
    records: int
    total: int
    complete: bool
    seconds: float


def check_target(topic: str, partitions: int, settings: Mapping[str, str | None], oldest_ms: Mapping[int, int]) -> None:
    """Warn of records that the topic will keep otherwise than the source.

    :param partitions: how many it has.
    :param oldest_ms: about the time of the first records, by partition.
    :raises PipelineError: it lacks a partition: records keep theirs.
    """
    last = max(oldest_ms, default=-1)
    if last >= partitions:
        raise PipelineError(
            f"topic {topic} has {partitions} partitions, and there are records of partition {last}; give it "
            f"{last + 1}, or choose partitions"
        )
    is_deleting = "delete" in (settings.get("cleanup.policy") or "delete")
    kept_ms = int(settings.get("retention.ms") or -1) if is_deleting else -1
    age_ms = max((int(time() * 1000) - ms for ms in oldest_ms.values()), default=0)
    if settings.get("message.timestamp.type") == "LogAppendTime":
        log.warning("timestamps are not kept: the topic has the time of the append instead", topic=topic)
    elif 0 <= kept_ms < age_ms:
        log.warning(
            "records are older than the topic keeps them, and may be gone at once",
            topic=topic, oldest_is_ms_old=age_ms, retention_ms=kept_ms,
        )  # fmt: skip


def check_name(name: str, target: str, topics: Iterable[str]) -> None:
    """Refuse a replay's name that another target has: positions and transactional ids belong to the name.

    :param topics: of the positions of the replay's group.
    :raises PipelineError:
    """
    if others := sorted({*topics} - {target}):
        raise PipelineError(f"replay {name} was begun with topic {others[0]}; choose another name")


def made_anew(topic: str) -> PipelineError:
    """The error for a topic that was recreated meanwhile: producers do not notice."""
    return PipelineError(
        f"topic {topic} was deleted and created anew while records were written to it, so that it has only a part of "
        "them; delete and create it once more, and start the replay again"
    )
