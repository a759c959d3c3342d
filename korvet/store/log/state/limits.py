"""A topic's limits as numbers, read from its settings once for each state of the catalog."""

from __future__ import annotations

from dataclasses import dataclass, field

from korvet.configs.topics import VALUE_SCHEMA
from korvet.configs.types import split
from korvet.store.catalog.catalog import Catalog
from korvet.store.catalog.topic import Topic
from korvet.wire.batch import GZIP, LZ4, SNAPPY, ZSTD


@dataclass(slots=True)
class TopicLimits:
    """A topic's settings for appends; ``generation`` is the catalog's at the time of reading."""

    generation: int
    max_message_bytes: int
    max_behind_ms: int
    max_ahead_ms: int
    is_log_append_time: bool
    is_compacted: bool = False
    value_schema: str = ""
    """The text of the values' schema, or empty."""
    codec: int | None = None
    """The codec of all batches; None leaves it to the producer."""
    level: int | None = None
    is_record: bool = False
    """True if records are stored one by one, so that the log gets uncompressed batches."""
    is_json: bool = False
    """True if a JSON object is stored as one field for each member."""
    copies: int = 1
    """min.insync.replicas: the servers, including the primary, that must hold a batch before acks=all is answered."""
    is_synced: bool = False
    """korvet.acks.fsync: true if acks=all waits for the server's disk."""

    opens_batches: bool = field(init=False)
    """True if batches are opened before their append."""
    is_held: bool = field(init=False)
    """True if acks=all waits after the append."""
    is_plain: bool = field(init=False)
    """True if a batch needs only its append."""

    def __post_init__(self) -> None:
        self.opens_batches = bool(self.value_schema) or self.codec is not None or self.is_record
        self.is_held = self.copies > 1 or self.is_synced
        self.is_plain = not self.opens_batches and not self.is_compacted and not self.is_held


def keeps_unarchived(catalog: Catalog, topic: Topic) -> bool:
    """True if a topic keeps unarchived records."""
    return catalog.setting(topic, "korvet.retention") == "archived"


_CODECS = {"uncompressed": 0, "gzip": GZIP, "snappy": SNAPPY, "lz4": LZ4, "zstd": ZSTD}
_LEVELS = {GZIP: "compression.gzip.level", LZ4: "compression.lz4.level", ZSTD: "compression.zstd.level"}


def limits_of(catalog: Catalog, topic: Topic) -> TopicLimits:
    """A topic's limits, by the catalog as last read."""
    is_record = catalog.setting(topic, "korvet.storage") == "record"
    codec = 0 if is_record else _CODECS.get(catalog.setting(topic, "compression.type"))
    level = None if codec not in _LEVELS else catalog.integer(topic, _LEVELS[codec])
    return TopicLimits(
        catalog.generation,
        catalog.integer(topic, "max.message.bytes"),
        catalog.integer(topic, "message.timestamp.before.max.ms"),
        catalog.integer(topic, "message.timestamp.after.max.ms"),
        catalog.setting(topic, "message.timestamp.type") == "LogAppendTime",
        "compact" in split(catalog.setting(topic, "cleanup.policy")),
        catalog.setting(topic, VALUE_SCHEMA),
        codec,
        level,
        is_record,
        is_record and catalog.setting(topic, "korvet.value.format") == "json",
        catalog.integer(topic, "min.insync.replicas"),
        catalog.boolean(topic, "korvet.acks.fsync"),
    )
