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
        Config("cleanup.policy", Kind.LIST, "delete", synonym="log.cleanup.policy", check=one_of("compact", "delete"),
               documentation="What happens to old records. delete removes them by retention.ms and retention.bytes, "
               "compact keeps the last one of each key."),
        Config("compression.gzip.level", Kind.INT, "-1", synonym="compression.gzip.level", check=gzip_level,
               documentation="The level for compression.type gzip."),
        Config("compression.lz4.level", Kind.INT, "9", synonym="compression.lz4.level", check=between(1, 17),
               documentation="The level for compression.type lz4: 9 is its fast mode, any other its thorough mode."),
        Config("compression.type", Kind.STRING, "producer", synonym="compression.type", check=one_of(*_COMPRESSIONS),
               documentation="The compression of stored batches. producer keeps each batch as its producer made it."),
        Config("compression.zstd.level", Kind.INT, "3", synonym="compression.zstd.level", check=between(-131072, 22),
               documentation="The level for compression.type zstd."),
        Config("delete.retention.ms", Kind.LONG, str(_DAY_MS), synonym="log.cleaner.delete.retention.ms",
               check=at_least(0), documentation="How long compaction keeps the markers of deleted keys."),
        Config("errors.deadletterqueue.group.enable", Kind.BOOLEAN, "false",
               documentation="Whether share groups may write the records here that failed."),
        Config("file.delete.delay.ms", Kind.LONG, "60000", synonym="log.segment.delete.delay.ms", check=at_least(0),
               documentation="The wait before a file is removed. Korvet has no log files."),
        Config("flush.messages", Kind.LONG, str(LONG_MAX), synonym="log.flush.interval.messages", check=at_least(1),
               documentation="Records between two flushes to disk. The setting appendfsync of Redis says when it "
               "flushes."),
        Config("flush.ms", Kind.LONG, str(LONG_MAX), synonym="log.flush.interval.ms", check=at_least(0),
               documentation="Time between two flushes to disk. The setting appendfsync of Redis says when it "
               "flushes."),
        Config("follower.replication.throttled.replicas", Kind.LIST, "",
               check=throttled_replicas("follower.replication.throttled.replicas"),
               documentation="Followers whose replication is throttled. Redis replicates, so there are none."),
        Config("index.interval.bytes", Kind.INT, "4096", synonym="log.index.interval.bytes", check=at_least(0),
               documentation="Bytes between two index entries. Korvet indexes every batch."),
        Config("korvet.retention", Kind.STRING, "limits", check=one_of("limits", "archived"),
               documentation="The records that retention.ms and retention.bytes may remove: all beyond these bounds, "
               "or only archived ones. Archived records are below the offset that the group korvet.archive committed."),
        Config("korvet.lake.tables", Kind.LIST, "", check=one_of("raw", "typed", "latest"),
               documentation="The tables that `korvet pipeline archive` keeps of the topic, if it is started without "
               "topics; empty is none. There is always raw beside the others."),
        Config("korvet.acks.fsync", Kind.BOOLEAN, "false", synonym="korvet.acks.fsync",
               documentation="Whether acks=all and commits of transactions wait until Redis has flushed to its disk. "
               "This needs Redis 7.2 or Valkey, with appendonly yes."),
        Config("korvet.storage", Kind.STRING, "batch", check=one_of("batch", "record"),
               documentation="The content of a log's entry in Redis: a batch as its producer made it, or one record, "
               "which Redis clients can read. It counts for records that come from then on."),
        Config("korvet.value.format", Kind.STRING, "raw", check=one_of("raw", "json"),
               documentation="With korvet.storage=record and json, an entry has a field for each member of a value "
               "that is a JSON object."),
        Config(VALUE_SCHEMA, Kind.STRING, "", check=is_value_schema,
               documentation="A JSON Schema; empty is none. A record is refused unless its value fits it or is null."),
        Config("leader.replication.throttled.replicas", Kind.LIST, "",
               check=throttled_replicas("leader.replication.throttled.replicas"),
               documentation="Leaders whose replication is throttled. Redis replicates, so there are none."),
        Config("local.retention.bytes", Kind.LONG, "-2", synonym="log.local.retention.bytes", check=at_least(-2),
               documentation="Bytes of a partition that Redis keeps of a topic in the tier; -2 means retention.bytes."),
        Config("local.retention.ms", Kind.LONG, "-2", synonym="log.local.retention.ms", check=at_least(-2),
               documentation="Time for which Redis keeps batches of a topic in the tier; -2 means retention.ms."),
        Config("max.compaction.lag.ms", Kind.LONG, str(LONG_MAX), synonym="log.cleaner.max.compaction.lag.ms",
               check=at_least(1), documentation="The longest time that a record stays out of reach of compaction."),
        Config("max.message.bytes", Kind.INT, "1048588", synonym="message.max.bytes", check=at_least(0),
               documentation="The largest record batch, compressed, that a producer may send."),
        Config("message.timestamp.after.max.ms", Kind.LONG, "3600000", synonym="log.message.timestamp.after.max.ms",
               check=at_least(0), documentation="How far in the future a record's timestamp may lie."),
        Config("message.timestamp.before.max.ms", Kind.LONG, str(LONG_MAX),
               synonym="log.message.timestamp.before.max.ms", check=at_least(0),
               documentation="How far in the past a record's timestamp may lie."),
        Config("message.timestamp.type", Kind.STRING, "CreateTime", synonym="log.message.timestamp.type",
               check=one_of("CreateTime", "LogAppendTime"),
               documentation="The clock of a record's timestamp: the producer's (CreateTime) or the broker's."),
        Config("min.cleanable.dirty.ratio", Kind.DOUBLE, "0.5", synonym="log.cleaner.min.cleanable.ratio",
               check=between(0, 1), documentation="The share of uncompacted bytes at which compaction starts."),
        Config("min.compaction.lag.ms", Kind.LONG, "0", synonym="log.cleaner.min.compaction.lag.ms", check=at_least(0),
               documentation="The shortest time that a record stays out of reach of compaction."),
        Config("min.insync.replicas", Kind.INT, "1", synonym="min.insync.replicas", check=at_least(1),
               documentation="Servers that must hold a batch, Redis's primary among them, before acks=all is "
               "answered."),
        Config("preallocate", Kind.BOOLEAN, "false", synonym="log.preallocate",
               documentation="Whether files are made at their full size. Korvet has no log files."),
        Config("remote.log.copy.disable", Kind.BOOLEAN, "false",
               documentation="Whether no further batches of a topic in the tier go there."),
        Config("remote.log.delete.on.disable", Kind.BOOLEAN, "false",
               documentation="Kept and shown: a topic cannot leave the tier."),
        Config("remote.storage.enable", Kind.BOOLEAN, "false",
               documentation="Whether batches go to the tier, from where they are read once Redis no longer holds "
               "them."),
        Config("retention.bytes", Kind.LONG, "-1", synonym="log.retention.bytes",
               documentation="Bytes that a partition keeps at least when its oldest batches are removed; -1 is no "
               "limit."),
        Config("retention.ms", Kind.LONG, str(7 * _DAY_MS), synonym="log.retention.ms", check=at_least(-1),
               documentation="Age at which batches are removed, by their largest timestamp; -1 is no limit."),
        Config("segment.bytes", Kind.INT, "1073741824", synonym="log.segment.bytes", check=at_least(1048576),
               documentation="The size of a log file. Korvet has no log files; retention works by batch."),
        Config("segment.index.bytes", Kind.INT, "10485760", synonym="log.index.size.max.bytes", check=at_least(4),
               documentation="The size of an index file. Korvet has no index files."),
        Config("segment.jitter.ms", Kind.LONG, "0", synonym="log.roll.jitter.ms", check=at_least(0),
               documentation="Spread of the times at which log files are closed. Korvet has no log files."),
        Config("segment.ms", Kind.LONG, str(7 * _DAY_MS), synonym="log.roll.ms", check=at_least(1),
               documentation="Age at which a log file is closed. Korvet has no log files; retention works by batch."),
        Config("unclean.leader.election.enable", Kind.BOOLEAN, "false", synonym="unclean.leader.election.enable",
               documentation="Whether a copy that lags may lead. Redis decides which copy leads."),
    ]
)  # fmt: skip
