"""What an archive is told, and what it tells."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from korvet.pipeline.errors import PipelineError


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveConfig:
    """What is archived, and where to.

    :param topics: by name; ``pattern`` is a regular expression for others, whose new topics join while it runs.
    :param checkpoints: a directory for the checkpoints, if not within the lake.
    :param source: korvet's reader, or Spark's own Kafka connector, whose jars Spark must have.
    :param every_s: how often; None archives what is there now, and ends.
    :param starting: where a topic begins of which the lake has nothing.
    :param fail_on_data_loss: end where records are gone that were not archived, or were replaced after they were.
        Else the archive says so and goes on from what the broker has.
    :param schemas: topic -> JSON Schema, before the topic's own setting ``korvet.value.schema``; an empty text: none.
    :param client: the Kafka client's settings, by the Java client's names.
    """

    bootstrap_servers: str
    lake: str
    topics: tuple[str, ...] = ()
    pattern: str | None = None
    checkpoints: str | None = None
    source: Literal["korvet", "kafka"] = "korvet"
    every_s: float | None = None
    starting: Literal["earliest", "latest"] = "earliest"
    max_offsets_per_trigger: int | None = None
    isolation: Literal["read_committed", "read_uncommitted"] = "read_committed"
    fail_on_data_loss: bool = True
    schemas: Mapping[str, str] = field(default_factory=dict)
    client: Mapping[str, str] = field(default_factory=dict)

    @property
    def kafka_options(self) -> dict[str, str]:
        """The client's settings as options of a reader."""
        given = {**self.client, "bootstrap.servers": self.bootstrap_servers, "isolation.level": self.isolation}
        return {f"kafka.{name}": value for name, value in given.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveProgress:
    """One batch of one topic that is in the lake. ``behind`` counts offsets between it and the topic's end."""

    topic: str
    batch_id: int
    rows: int
    rows_per_s: float
    behind: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicResult:
    """What was done for a topic, and what its table has: everything below ``offsets``. ``error`` says why it ended."""

    rows: int
    batches: int
    offsets: Mapping[int, int]
    error: PipelineError | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveResult:
    """How it ended, for each topic."""

    topics: Mapping[str, TopicResult]

    @property
    def failed(self) -> dict[str, PipelineError]:
        """The topics whose archive failed, with the reason."""
        return {name: each.error for name, each in self.topics.items() if each.error is not None}
