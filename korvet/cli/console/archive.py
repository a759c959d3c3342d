"""The archive as the broker knows it: the offsets that it committed, and the ends of the logs.

It needs no Spark and no report, and shows the present moment.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from korvet.cli.kafka.archived import archived_ends
from korvet.cli.kafka.client import Client
from korvet.cli.kafka.offsets import EARLIEST, LATEST, Committed, TopicPartition, log_offsets
from korvet.unknown import total


class ArchiveRow(NamedTuple):
    """An archived topic: its archived partitions, and the offsets that wait for the archive, None if not known."""

    topic: str
    partitions: int
    waiting: int | None


def archived_topics(positions: Iterable[TopicPartition]) -> list[str]:
    """The topics of these partitions, by name."""
    return sorted({partition.topic for partition in positions})


def archive_rows(
    client: Client, positions: Mapping[TopicPartition, Committed], topics: Sequence[str]
) -> list[ArchiveRow]:
    """The rows of a page of topics.

    :param positions: what the archive committed. Retention, too, takes as archived what these rows do.
    """
    shown = frozenset(topics)
    own = {partition: position for partition, position in positions.items() if partition.topic in shown}
    archived, ends = archived_ends(client, own), log_offsets(client, own, LATEST)
    # Where the histories of Redis parted, nothing counts as archived.
    starts = log_offsets(client, own.keys() - archived.keys(), EARLIEST)
    waiting: dict[str, list[int | None]] = {topic: [] for topic in topics}
    for partition, end in ends.items():
        done = archived.get(partition, starts.get(partition))
        waiting[partition.topic].append(None if done is None else max(0, end - done))
    return [ArchiveRow(topic, len(own), total(own)) for topic, own in waiting.items()]
