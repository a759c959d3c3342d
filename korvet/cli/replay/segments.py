"""The source of a replay: what a tier holds of a topic, by the newest snapshots in the bucket."""

from __future__ import annotations

import math
import time
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from korvet.cli.ground.times import milliseconds
from korvet.cli.kafka.client import Client
from korvet.cli.kafka.offsets import EARLIEST, TopicPartition, log_offsets
from korvet.cli.replay.copies import Copy, copies
from korvet.cli.tier import with_objects
from korvet.errors import KorvetError
from korvet.pipeline.replay.config import Offsets, ReplayConfig
from korvet.tier.blocks import Gets
from korvet.tier.manifest import Member
from korvet.tier.objects import ObjectMissing, Objects, TierAway
from korvet.tier.reading import Committed, offset_from_time, sealed_batches
from korvet.tier.snapshot import Snapshot
from korvet.tier.survey import segments, survey

PATIENCE_S: Final = 120.0
"""The time that a broker or the tier may be away before the replay gives up."""
_PAUSE_S: Final = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A partition's offsets in the range, and the segments that have them."""

    start: int
    end: int
    folder: str
    members: Sequence[Member]

    @property
    def oldest_ms(self) -> int:
        """About the time of the first records: the greatest one of their segment."""
        return self.members[0].max_timestamp


@dataclass(frozen=True, slots=True, kw_only=True)
class Sealed:
    """A topic in a tier. ``parts`` are those partitions that have offsets in the range."""

    url: str
    topic_id: str
    partitions: int
    parts: Mapping[int, Part]

    def read(self, partition: int, start: int) -> Generator[tuple[Sequence[Copy], int]]:
        """What to send of a partition from an offset on, in parts of some MiB, each with the offset after it.

        :raises KorvetError:
        """
        part, deadline = self.parts[partition], math.inf
        while True:
            try:
                for read in sealed_batches(self.url, part.folder, part.members, start, part.end):
                    committed = Committed(read.footer.aborted_within(start, read.next_offset))
                    yield list(copies(read.batches, committed, start, part.end)), min(read.next_offset, part.end)
                    start, deadline = read.next_offset, math.inf
                return
            except ObjectMissing as missing:
                raise KorvetError(
                    f"{missing}: it was merged with others, or its records were deleted; start the replay again, and "
                    "it goes on"
                ) from None
            except TierAway as error:
                deadline = min(deadline, time.monotonic() + PATIENCE_S)
                if time.monotonic() > deadline:
                    raise KorvetError(f"{error}; when that is over, start the replay again, and it goes on") from None
                time.sleep(_PAUSE_S)


def find(client: Client, tier: str, config: ReplayConfig) -> Sealed:
    """What the tier holds of the topic in the range.

    :raises KorvetError:
    """
    found = with_objects(_find, tier, tier, config)
    # A snapshot may be some seconds old. If the topic is on these brokers, they know what was deleted since.
    topic = client.topics([config.topic])[config.topic]
    if topic.topic_id is None or topic.topic_id.hex != found.topic_id:
        return found
    starts = log_offsets(client, [TopicPartition(config.topic, number) for number in found.parts], EARLIEST)
    parts = {
        at.partition: replace(found.parts[at.partition], start=max(start, found.parts[at.partition].start))
        for at, start in starts.items()
    }
    return replace(found, parts={number: one for number, one in parts.items() if one.start < one.end})


async def _find(objects: Objects, tier: str, config: ReplayConfig) -> Sealed:
    found = await survey(objects, config.tier_namespace, config.topic)
    topic = found.topics.named(config.topic)
    assert topic is not None, "a survey of one topic finds it"
    for problem in found.problems:
        raise KorvetError(problem)
    parts = {}
    for snapshot in found.of(topic):
        if config.partitions is None or snapshot.partition in config.partitions:
            part = await _part(Gets(objects), snapshot, config)
            if part.start < part.end:
                parts[snapshot.partition] = part
    return Sealed(url=tier, topic_id=topic.id, partitions=topic.partitions, parts=parts)


async def _part(gets: Gets, snapshot: Snapshot, config: ReplayConfig) -> Part:
    problems: list[str] = []
    members = [one.member async for one in segments(gets, snapshot, problems)]
    for problem in problems:
        raise KorvetError(problem)
    start, end = snapshot.log_start, snapshot.tier_end
    given_start, given_end = (_of(given, snapshot.partition) for given in (config.from_offset, config.to_offset))
    if given_start is not None:
        start = max(start, given_start)
    if given_end is not None:
        end = min(end, given_end)
    if config.from_time is not None:
        found = await offset_from_time(gets, snapshot.folder, members, milliseconds(config.from_time))
        start = end if found is None else max(start, found)
    if config.to_time is not None:
        found = await offset_from_time(gets, snapshot.folder, members, milliseconds(config.to_time))
        end = end if found is None else min(end, found)
    return Part(
        start=start,
        end=end,
        folder=snapshot.folder,
        members=[one for one in members if one.next_offset > start],
    )


def _of(offsets: Offsets | None, partition: int) -> int | None:
    return offsets.get(partition) if isinstance(offsets, Mapping) else offsets
