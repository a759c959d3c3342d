"""What a topic takes, as numbers: made of its settings once for each state of the catalog, not for each batch."""

from __future__ import annotations

from dataclasses import dataclass, field

from korvet.store.catalog import Catalog, Topic
from korvet.store.configs import split
from korvet.store.value_schema import ValueSchema, value_schema
from korvet.wire.batch import GZIP, LZ4, SNAPPY, ZSTD


@dataclass(slots=True)
class Limits:
    """A topic's settings for appends; ``generation`` is the catalog's that they were read in."""

    generation: int
    max_message_bytes: int
    max_behind_ms: int
    max_ahead_ms: int
    is_log_append_time: bool
    is_compacted: bool = False
    value_schema: ValueSchema | None = None
    codec: int | None = None
    """What batches are compressed by, whatever their producer took; None leaves that to it."""
    level: int | None = None
    is_record: bool = False
    """Whether records are stored one by one, so that batches come to the log without compression."""
    is_json: bool = False
    """Whether their values are laid out in members where they are JSON objects."""
    copies: int = 1
    """min.insync.replicas: how many servers must hold a batch, the primary among them, before acks=all is answered."""

    opens_batches: bool = field(init=False)
    """Whether batches are opened before they are appended."""
    is_plain: bool = field(init=False)
    """Whether nothing is to be done for a batch, or waited for, but its append."""

    def __post_init__(self) -> None:
        self.opens_batches = self.value_schema is not None or self.codec is not None or self.is_record
        self.is_plain = not self.opens_batches and not self.is_compacted and self.copies == 1


_CODECS = {"uncompressed": 0, "gzip": GZIP, "snappy": SNAPPY, "lz4": LZ4, "zstd": ZSTD}
_LEVELS = {GZIP: "compression.gzip.level", LZ4: "compression.lz4.level", ZSTD: "compression.zstd.level"}


def limits_of(catalog: Catalog, topic: Topic) -> Limits:
    """The limits as the catalog's cache has them."""
    is_record = catalog.setting(topic, "korvet.storage") == "record"
    codec = 0 if is_record else _CODECS.get(catalog.setting(topic, "compression.type"))
    level = None if codec not in _LEVELS else int(catalog.setting(topic, _LEVELS[codec]))
    return Limits(
        catalog.generation,
        int(catalog.setting(topic, "max.message.bytes")),
        int(catalog.setting(topic, "message.timestamp.before.max.ms")),
        int(catalog.setting(topic, "message.timestamp.after.max.ms")),
        catalog.setting(topic, "message.timestamp.type") == "LogAppendTime",
        "compact" in split(catalog.setting(topic, "cleanup.policy")),
        value_schema(catalog.setting(topic, "korvet.value.schema")),
        codec,
        level,
        is_record,
        is_record and catalog.setting(topic, "korvet.value.format") == "json",
        int(catalog.setting(topic, "min.insync.replicas")),
    )
