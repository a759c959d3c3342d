"""The configuration of an archive, its progress and its result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from korvet.pipeline.errors import PipelineError
from korvet.pipeline.plan.batch import Source
from korvet.pipeline.source.options import DEFAULT_NAMESPACE


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveConfig:
    """Topics to archive, and the lake that gets them.

    :param topics: by name; ``pattern`` is a regular expression for others, whose new topics join while it runs. Without
        both, the topics with the setting ``korvet.lake.tables`` are archived, and others join once they have it.
    :param source: korvet's reader, or Spark's own Kafka connector, whose jars Spark must have.
    :param every_s: seconds between batches; None archives the records that are there now, and ends.
    :param maintain_every_s: seconds between maintenance of the tables beside the archive; None leaves it to `maintain`.
    :param expire_hours: maintenance deletes rows older than this in the archive; None keeps all rows.
    :param starting: where a topic begins if the lake has nothing of it.
    :param fail_on_data_loss: end if records are gone before they were archived, or other records have taken the
        offsets of archived ones. Else the archive says so and goes on with the records that the broker has.
    :param take_over: the topics' retention follows this lake's offsets from now on, and no longer another lake's.
    :param table: a further table that each topic gets: ``latest`` has the newest record of each key.
    :param schema_registry: URL of the registry with the Avro schemas of values in Confluent's frame.
    :param schemas: topic -> JSON Schema, instead of the topic's setting ``korvet.value.schema``; an empty text: none.
    :param tier: where sealed records are read, a directory or a bucket's URL; None reads all from the brokers,
        as Spark's own connector does.
    :param tier_namespace: the namespace of the brokers' listener.
    :param client: the Kafka client's settings, by the Java client's names.
    """

    bootstrap_servers: str
    lake: str
    topics: tuple[str, ...] = ()
    pattern: str | None = None
    source: Source = "korvet"
    every_s: float | None = None
    maintain_every_s: float | None = None
    expire_hours: float | None = None
    starting: Literal["earliest", "latest"] = "earliest"
    max_offsets_per_trigger: int | None = None
    isolation: Literal["read_committed", "read_uncommitted"] = "read_committed"
    fail_on_data_loss: bool = True
    take_over: bool = False
    table: Literal["latest"] | None = None
    schema_registry: str | None = None
    schemas: Mapping[str, str] = field(default_factory=dict)
    tier: str | None = None
    tier_namespace: str = DEFAULT_NAMESPACE
    client: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def may_grow(self) -> bool:
        """True if topics may join while it runs."""
        return self.pattern is not None or not self.topics

    @property
    def kafka_options(self) -> dict[str, str]:
        """The client's settings and the tier as options of a reader."""
        given = {**self.client, "bootstrap.servers": self.bootstrap_servers, "isolation.level": self.isolation}
        tier = {} if self.tier is None else {"tier.url": self.tier, "tier.namespace": self.tier_namespace}
        return {**{f"kafka.{name}": value for name, value in given.items()}, **tier}


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveProgress:
    """One batch of one topic in the lake. ``behind`` is the lag: the offsets from its end to the topic's end."""

    topic: str
    batch_id: int
    rows: int
    rows_per_s: float
    behind: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicResult:
    """The outcome for a topic. Its table has everything below ``offsets``. ``error`` says why the archive failed."""

    rows: int
    batches: int
    offsets: Mapping[int, int]
    error: PipelineError | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveResult:
    """The outcome for each topic."""

    topics: Mapping[str, TopicResult]

    @property
    def failed(self) -> dict[str, PipelineError]:
        """The topics whose archive failed, with the reason."""
        return {name: each.error for name, each in self.topics.items() if each.error is not None}
