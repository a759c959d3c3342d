"""The configs of topics, by their Kafka names.

Kafka 4.1's LogConfig has them, with the same types, defaults and validators, except for korvet's own. There are two
kinds:

- configs that act (retention, compaction, sizes, timestamps, compression, the tier);
- configs of files that korvet lacks (segments, indexes), or of Redis's work (flushes, elections): any valid value is
  kept and shown.
"""

from __future__ import annotations

from typing import Final

from korvet.configs.types import (
    LONG_MAX,
    Config,
    Kind,
    at_least,
    between,
    gzip_level,
    one_of,
    table,
    throttled_replicas,
)
from korvet.configs.value_schema import is_value_schema

VALUE_SCHEMA: Final = "korvet.value.schema"
_DAY_MS: Final = 86_400_000
_COMPRESSIONS: Final = ("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer")


TOPIC_CONFIGS: Final = table(
    [
        Config(
            name="cleanup.policy",
            kind=Kind.LIST,
            default="delete",
            synonym="log.cleanup.policy",
            check=one_of("compact", "delete"),
            documentation="What happens to old records. delete removes them by retention.ms and retention.bytes, "
            "compact keeps the last one of each key.",
        ),
        Config(
            name="compression.gzip.level",
            kind=Kind.INT,
            default="-1",
            synonym="compression.gzip.level",
            check=gzip_level,
            documentation="The level for compression.type gzip.",
        ),
        Config(
            name="compression.lz4.level",
            kind=Kind.INT,
            default="9",
            synonym="compression.lz4.level",
            check=between(1, 17),
            documentation="The level for compression.type lz4: 9 is its fast mode, any other its thorough mode.",
        ),
        Config(
            name="compression.type",
            kind=Kind.STRING,
            default="producer",
            synonym="compression.type",
            check=one_of(*_COMPRESSIONS),
            documentation="The compression of stored batches. producer keeps each batch as its producer made it.",
        ),
        Config(
            name="compression.zstd.level",
            kind=Kind.INT,
            default="3",
            synonym="compression.zstd.level",
            check=between(-131072, 22),
            documentation="The level for compression.type zstd.",
        ),
        Config(
            name="delete.retention.ms",
            kind=Kind.LONG,
            default=str(_DAY_MS),
            synonym="log.cleaner.delete.retention.ms",
            check=at_least(0),
            documentation="How long compaction keeps the markers of deleted keys.",
        ),
        Config(
            name="errors.deadletterqueue.group.enable",
            kind=Kind.BOOLEAN,
            default="false",
            documentation="Whether share groups may write the records here that failed.",
        ),
        Config(
            name="file.delete.delay.ms",
            kind=Kind.LONG,
            default="60000",
            synonym="log.segment.delete.delay.ms",
            check=at_least(0),
            documentation="The wait before a file is removed. Korvet has no log files.",
        ),
        Config(
            name="flush.messages",
            kind=Kind.LONG,
            default=str(LONG_MAX),
            synonym="log.flush.interval.messages",
            check=at_least(1),
            documentation="Records between two flushes to disk. The setting appendfsync of Redis says when it flushes.",
        ),
        Config(
            name="flush.ms",
            kind=Kind.LONG,
            default=str(LONG_MAX),
            synonym="log.flush.interval.ms",
            check=at_least(0),
            documentation="Time between two flushes to disk. The setting appendfsync of Redis says when it flushes.",
        ),
        Config(
            name="follower.replication.throttled.replicas",
            kind=Kind.LIST,
            default="",
            check=throttled_replicas("follower.replication.throttled.replicas"),
            documentation="Followers whose replication is throttled. Redis replicates, so there are none.",
        ),
        Config(
            name="index.interval.bytes",
            kind=Kind.INT,
            default="4096",
            synonym="log.index.interval.bytes",
            check=at_least(0),
            documentation="Bytes between two index entries. Korvet indexes every batch.",
        ),
        Config(
            name="korvet.retention",
            kind=Kind.STRING,
            default="limits",
            check=one_of("limits", "archived"),
            documentation="The records that retention.ms and retention.bytes may remove: all beyond these bounds, or "
            "only archived ones. Archived records are below the offset that the group korvet.archive committed.",
        ),
        Config(
            name="korvet.lake.tables",
            kind=Kind.LIST,
            default="",
            check=one_of("raw", "typed", "latest"),
            documentation="The tables that `korvet pipeline archive` keeps of the topic, if it is started without "
            "topics; empty is none. There is always raw beside the others.",
        ),
        Config(
            name="korvet.acks.fsync",
            kind=Kind.BOOLEAN,
            default="false",
            synonym="korvet.acks.fsync",
            documentation="Whether acks=all and commits of transactions wait until Redis has flushed to its disk. "
            "This needs Redis 7.2 or Valkey, with appendonly yes.",
        ),
        Config(
            name="korvet.storage",
            kind=Kind.STRING,
            default="batch",
            check=one_of("batch", "record"),
            documentation="The content of a log's entry in Redis: a batch as its producer made it, or one record, "
            "which Redis clients can read. It counts for records that come from then on.",
        ),
        Config(
            name="korvet.value.format",
            kind=Kind.STRING,
            default="raw",
            check=one_of("raw", "json"),
            documentation="With korvet.storage=record and json, an entry has a field for each member of a value that "
            "is a JSON object.",
        ),
        Config(
            name=VALUE_SCHEMA,
            kind=Kind.STRING,
            default="",
            check=is_value_schema,
            documentation="A JSON Schema; empty is none. A record is refused unless its value fits it or is null.",
        ),
        Config(
            name="leader.replication.throttled.replicas",
            kind=Kind.LIST,
            default="",
            check=throttled_replicas("leader.replication.throttled.replicas"),
            documentation="Leaders whose replication is throttled. Redis replicates, so there are none.",
        ),
        Config(
            name="local.retention.bytes",
            kind=Kind.LONG,
            default="-2",
            synonym="log.local.retention.bytes",
            check=at_least(-2),
            documentation="Bytes of a partition that Redis keeps of a topic in the tier; -2 means retention.bytes.",
        ),
        Config(
            name="local.retention.ms",
            kind=Kind.LONG,
            default="-2",
            synonym="log.local.retention.ms",
            check=at_least(-2),
            documentation="Time for which Redis keeps batches of a topic in the tier; -2 means retention.ms.",
        ),
        Config(
            name="max.compaction.lag.ms",
            kind=Kind.LONG,
            default=str(LONG_MAX),
            synonym="log.cleaner.max.compaction.lag.ms",
            check=at_least(1),
            documentation="The longest time that a record stays out of reach of compaction.",
        ),
        Config(
            name="max.message.bytes",
            kind=Kind.INT,
            default="1048588",
            synonym="message.max.bytes",
            check=at_least(0),
            documentation="The largest record batch, compressed, that a producer may send.",
        ),
        Config(
            name="message.timestamp.after.max.ms",
            kind=Kind.LONG,
            default="3600000",
            synonym="log.message.timestamp.after.max.ms",
            check=at_least(0),
            documentation="How far in the future a record's timestamp may lie.",
        ),
        Config(
            name="message.timestamp.before.max.ms",
            kind=Kind.LONG,
            default=str(LONG_MAX),
            synonym="log.message.timestamp.before.max.ms",
            check=at_least(0),
            documentation="How far in the past a record's timestamp may lie.",
        ),
        Config(
            name="message.timestamp.type",
            kind=Kind.STRING,
            default="CreateTime",
            synonym="log.message.timestamp.type",
            check=one_of("CreateTime", "LogAppendTime"),
            documentation="The clock of a record's timestamp: the producer's (CreateTime) or the broker's.",
        ),
        Config(
            name="min.cleanable.dirty.ratio",
            kind=Kind.DOUBLE,
            default="0.5",
            synonym="log.cleaner.min.cleanable.ratio",
            check=between(0, 1),
            documentation="The share of uncompacted bytes at which compaction starts.",
        ),
        Config(
            name="min.compaction.lag.ms",
            kind=Kind.LONG,
            default="0",
            synonym="log.cleaner.min.compaction.lag.ms",
            check=at_least(0),
            documentation="The shortest time that a record stays out of reach of compaction.",
        ),
        Config(
            name="min.insync.replicas",
            kind=Kind.INT,
            default="1",
            synonym="min.insync.replicas",
            check=at_least(1),
            documentation="Servers that must hold a batch, Redis's primary among them, before acks=all is answered.",
        ),
        Config(
            name="preallocate",
            kind=Kind.BOOLEAN,
            default="false",
            synonym="log.preallocate",
            documentation="Whether files are made at their full size. Korvet has no log files.",
        ),
        Config(
            name="remote.log.copy.disable",
            kind=Kind.BOOLEAN,
            default="false",
            documentation="Whether no further batches of a topic in the tier go there.",
        ),
        Config(
            name="remote.log.delete.on.disable",
            kind=Kind.BOOLEAN,
            default="false",
            documentation="Kept and shown: a topic cannot leave the tier.",
        ),
        Config(
            name="remote.storage.enable",
            kind=Kind.BOOLEAN,
            default="false",
            documentation="Whether batches go to the tier, from where they are read once Redis no longer holds them.",
        ),
        Config(
            name="retention.bytes",
            kind=Kind.LONG,
            default="-1",
            synonym="log.retention.bytes",
            documentation="Bytes that a partition keeps at least when its oldest batches are removed; -1 is no limit.",
        ),
        Config(
            name="retention.ms",
            kind=Kind.LONG,
            default=str(7 * _DAY_MS),
            synonym="log.retention.ms",
            check=at_least(-1),
            documentation="Age at which batches are removed, by their largest timestamp; -1 is no limit.",
        ),
        Config(
            name="segment.bytes",
            kind=Kind.INT,
            default="1073741824",
            synonym="log.segment.bytes",
            check=at_least(1048576),
            documentation="The size of a log file. Korvet has no log files; retention works by batch.",
        ),
        Config(
            name="segment.index.bytes",
            kind=Kind.INT,
            default="10485760",
            synonym="log.index.size.max.bytes",
            check=at_least(4),
            documentation="The size of an index file. Korvet has no index files.",
        ),
        Config(
            name="segment.jitter.ms",
            kind=Kind.LONG,
            default="0",
            synonym="log.roll.jitter.ms",
            check=at_least(0),
            documentation="Spread of the times at which log files are closed. Korvet has no log files.",
        ),
        Config(
            name="segment.ms",
            kind=Kind.LONG,
            default=str(7 * _DAY_MS),
            synonym="log.roll.ms",
            check=at_least(1),
            documentation="Age at which a log file is closed. Korvet has no log files; retention works by batch.",
        ),
        Config(
            name="unclean.leader.election.enable",
            kind=Kind.BOOLEAN,
            default="false",
            synonym="unclean.leader.election.enable",
            documentation="Whether a copy that lags may lead. Redis decides which copy leads.",
        ),
    ]
)
