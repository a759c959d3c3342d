"""The configs of topics and brokers that korvet knows, by their Kafka names.

Topics have those of Kafka 4.1's LogConfig, with its types, defaults and validators, and korvet's own. Three
kinds of them:

- those that act (retention, compaction, sizes, timestamps, compression);
- those that Kafka too reads only in a mode that is off (tiered storage), or that shape
  files which korvet does not have (segments, indexes): any valid value is kept and shown;
- those with ``only``: korvet does one thing, and setting another would be a promise it does not keep.

Broker configs are one set for the whole cluster, because every front-end serves every request. Listed are those that
act, those that stand in for a topic's config, and those that describe what korvet does (read-only).

Group configs are those of Kafka 4.1's GroupConfig for consumer groups, whose defaults the broker's configs are. Beside
them is what korvet alone tells of a group, where Kafka's clients can read it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final

from korvet.store.configs import (
    LONG_MAX,
    Check,
    Config,
    Kind,
    Value,
    at_least,
    between,
    gzip_level,
    one_of,
    throttled_replicas,
)
from korvet.store.value_schema import is_value_schema

INT_MAX: Final = 2**31 - 1
_BOOLEAN, _STRING, _INT, _LONG = Kind.BOOLEAN, Kind.STRING, Kind.INT, Kind.LONG
_DOUBLE, _LIST, _SHORT = Kind.DOUBLE, Kind.LIST, Kind.SHORT
_DAY_MS = 86_400_000
_COMPRESSIONS = ("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer")


def _table(configs: Iterable[Config]) -> Mapping[str, Config]:
    return MappingProxyType({config.name: config for config in configs})


TOPIC_CONFIGS: Final = _table(
    [
        Config(
            name="cleanup.policy",
            kind=_LIST,
            default="delete",
            synonym="log.cleanup.policy",
            check=one_of("compact", "delete"),
            documentation="What happens to old records. delete removes them by retention.ms and retention.bytes, "
            "compact keeps the last one of each key.",
        ),
        Config(
            name="compression.gzip.level",
            kind=_INT,
            default="-1",
            synonym="compression.gzip.level",
            check=gzip_level,
            documentation="The level for compression.type gzip.",
        ),
        Config(
            name="compression.lz4.level",
            kind=_INT,
            default="9",
            synonym="compression.lz4.level",
            check=between(1, 17),
            documentation="The level for compression.type lz4; 9 is its fast way, all others its thorough one.",
        ),
        Config(
            name="compression.type",
            kind=_STRING,
            default="producer",
            synonym="compression.type",
            check=one_of(*_COMPRESSIONS),
            documentation="The compression of stored batches. producer keeps each batch as its producer made it.",
        ),
        Config(
            name="compression.zstd.level",
            kind=_INT,
            default="3",
            synonym="compression.zstd.level",
            check=between(-131072, 22),
            documentation="The level for compression.type zstd.",
        ),
        Config(
            name="delete.retention.ms",
            kind=_LONG,
            default=str(_DAY_MS),
            synonym="log.cleaner.delete.retention.ms",
            check=at_least(0),
            documentation="How long compaction keeps the markers of deleted keys.",
        ),
        Config(
            name="file.delete.delay.ms",
            kind=_LONG,
            default="60000",
            synonym="log.segment.delete.delay.ms",
            check=at_least(0),
            documentation="The wait before a file is removed. Korvet has no log files.",
        ),
        Config(
            name="flush.messages",
            kind=_LONG,
            default=str(LONG_MAX),
            synonym="log.flush.interval.messages",
            check=at_least(1),
            documentation="Records between two flushes to disk. When Redis flushes is its own appendfsync setting.",
            only=str(LONG_MAX),
        ),
        Config(
            name="flush.ms",
            kind=_LONG,
            default=str(LONG_MAX),
            synonym="log.flush.interval.ms",
            check=at_least(0),
            documentation="Time between two flushes to disk. When Redis flushes is its own appendfsync setting.",
            only=str(LONG_MAX),
        ),
        Config(
            name="follower.replication.throttled.replicas",
            kind=_LIST,
            default="",
            check=throttled_replicas("follower.replication.throttled.replicas"),
            documentation="Followers whose replication is throttled. Redis replicates, so there are none.",
        ),
        Config(
            name="index.interval.bytes",
            kind=_INT,
            default="4096",
            synonym="log.index.interval.bytes",
            check=at_least(0),
            documentation="Bytes between two index entries. Korvet indexes every batch.",
        ),
        Config(
            name="korvet.retention",
            kind=_STRING,
            default="limits",
            check=one_of("limits", "archived"),
            documentation="What retention.ms and retention.bytes may remove: whatever is beyond them, or of that only "
            "what is archived, which is below what the group korvet.archive committed.",
        ),
        Config(
            name="korvet.storage",
            kind=_STRING,
            default="batch",
            check=one_of("batch", "record"),
            documentation="What an entry of the log is in Redis: a batch as its producer made it, or one record, for "
            "Redis clients to read. It counts for what comes from then on.",
        ),
        Config(
            name="korvet.value.format",
            kind=_STRING,
            default="raw",
            check=one_of("raw", "json"),
            documentation="With korvet.storage=record and json, a value that is a JSON object lies in a field for each "
            "member.",
        ),
        Config(
            name="korvet.value.schema",
            kind=_STRING,
            default="",
            check=is_value_schema,
            documentation="A JSON Schema. Records whose value is neither null nor fits it are refused; empty is none.",
        ),
        Config(
            name="leader.replication.throttled.replicas",
            kind=_LIST,
            default="",
            check=throttled_replicas("leader.replication.throttled.replicas"),
            documentation="Leaders whose replication is throttled. Redis replicates, so there are none.",
        ),
        Config(
            name="local.retention.bytes",
            kind=_LONG,
            default="-2",
            synonym="log.local.retention.bytes",
            check=at_least(-2),
            documentation="Bytes kept locally where tiered storage is on; -2 means retention.bytes.",
        ),
        Config(
            name="local.retention.ms",
            kind=_LONG,
            default="-2",
            synonym="log.local.retention.ms",
            check=at_least(-2),
            documentation="Time kept locally where tiered storage is on; -2 means retention.ms.",
        ),
        Config(
            name="max.compaction.lag.ms",
            kind=_LONG,
            default=str(LONG_MAX),
            synonym="log.cleaner.max.compaction.lag.ms",
            check=at_least(1),
            documentation="The longest time a record stays out of reach of compaction.",
        ),
        Config(
            name="max.message.bytes",
            kind=_INT,
            default="1048588",
            synonym="message.max.bytes",
            check=at_least(0),
            documentation="The largest record batch, compressed, that a producer may send.",
        ),
        Config(
            name="message.timestamp.after.max.ms",
            kind=_LONG,
            default="3600000",
            synonym="log.message.timestamp.after.max.ms",
            check=at_least(0),
            documentation="How far in the future a record's timestamp may lie.",
        ),
        Config(
            name="message.timestamp.before.max.ms",
            kind=_LONG,
            default=str(LONG_MAX),
            synonym="log.message.timestamp.before.max.ms",
            check=at_least(0),
            documentation="How far in the past a record's timestamp may lie.",
        ),
        Config(
            name="message.timestamp.type",
            kind=_STRING,
            default="CreateTime",
            synonym="log.message.timestamp.type",
            check=one_of("CreateTime", "LogAppendTime"),
            documentation="Whose clock a record's timestamp is from: the producer's (CreateTime) or the broker's.",
        ),
        Config(
            name="min.cleanable.dirty.ratio",
            kind=_DOUBLE,
            default="0.5",
            synonym="log.cleaner.min.cleanable.ratio",
            check=between(0, 1),
            documentation="The share of uncompacted bytes at which compaction starts.",
        ),
        Config(
            name="min.compaction.lag.ms",
            kind=_LONG,
            default="0",
            synonym="log.cleaner.min.compaction.lag.ms",
            check=at_least(0),
            documentation="The time a record stays out of reach of compaction at least.",
        ),
        Config(
            name="min.insync.replicas",
            kind=_INT,
            default="1",
            synonym="min.insync.replicas",
            check=at_least(1),
            documentation="Servers that must hold a batch, Redis's primary among them, before acks=all is answered.",
        ),
        Config(
            name="preallocate",
            kind=_BOOLEAN,
            default="false",
            synonym="log.preallocate",
            documentation="Whether files are made at their full size. Korvet has no log files.",
        ),
        Config(
            name="remote.log.copy.disable",
            kind=_BOOLEAN,
            default="false",
            documentation="Whether tiered storage stops copying.",
        ),
        Config(
            name="remote.log.delete.on.disable",
            kind=_BOOLEAN,
            default="false",
            documentation="Whether switching tiered storage off deletes what it holds.",
        ),
        Config(
            name="remote.storage.enable",
            kind=_BOOLEAN,
            default="false",
            documentation="Whether tiered storage is on.",
        ),
        Config(
            name="retention.bytes",
            kind=_LONG,
            default="-1",
            synonym="log.retention.bytes",
            documentation="Bytes a partition keeps at least before its oldest batches are removed; -1 is no limit.",
        ),
        Config(
            name="retention.ms",
            kind=_LONG,
            default=str(7 * _DAY_MS),
            synonym="log.retention.ms",
            check=at_least(-1),
            documentation="Age at which batches are removed, by their largest timestamp; -1 is no limit.",
        ),
        Config(
            name="segment.bytes",
            kind=_INT,
            default="1073741824",
            synonym="log.segment.bytes",
            check=at_least(1048576),
            documentation="The size of a log file. Korvet has no log files; retention works by batch.",
        ),
        Config(
            name="segment.index.bytes",
            kind=_INT,
            default="10485760",
            synonym="log.index.size.max.bytes",
            check=at_least(4),
            documentation="The size of an index file. Korvet has no index files.",
        ),
        Config(
            name="segment.jitter.ms",
            kind=_LONG,
            default="0",
            synonym="log.roll.jitter.ms",
            check=at_least(0),
            documentation="Spread of the times at which log files are closed. Korvet has no log files.",
        ),
        Config(
            name="segment.ms",
            kind=_LONG,
            default=str(7 * _DAY_MS),
            synonym="log.roll.ms",
            check=at_least(1),
            documentation="Age at which a log file is closed. Korvet has no log files; retention works by batch.",
        ),
        Config(
            name="unclean.leader.election.enable",
            kind=_BOOLEAN,
            default="false",
            synonym="unclean.leader.election.enable",
            documentation="Whether a copy that lags may lead. Which copy leads is for Redis to say.",
            only="false",
        ),
    ]
)

# Without a default of their own: it is that of a config in another unit (ServerTopicConfigSynonyms).
_IN_ANOTHER_UNIT = {
    "log.flush.interval.ms": "log.flush.scheduler.interval.ms",
    "log.retention.ms": "log.retention.hours",
    "log.roll.jitter.ms": "log.roll.jitter.hours",
    "log.roll.ms": "log.roll.hours",
}


def _stand_in(config: Config) -> Config:
    """The broker config that a topic's falls back to."""
    name = config.synonym or config.name
    return Config(
        name=name,
        kind=config.kind,
        default=None if name in _IN_ANOTHER_UNIT else config.default,
        synonym=_IN_ANOTHER_UNIT.get(name),
        documentation=config.documentation,
        check=config.check,
        only=config.only,
    )


def _fact(name: str, kind: Kind, value: str, documentation: str) -> Config:
    return Config(name=name, kind=kind, default=value, documentation=documentation, only=value, read_only=True)


def _at_start(name: str, kind: Kind, default: int, check: Check, documentation: str) -> Config:
    """A config of the front-end's config file, which clients cannot change."""
    return Config(name=name, kind=kind, default=str(default), documentation=documentation, check=check, read_only=True)


def _assignors(value: Value) -> str | None:
    """At least one, and known ones only."""
    return one_of("uniform", "range")(value) if value else "List must not be empty"


BROKER_CONFIGS: Final = _table(
    [
        *(_stand_in(config) for config in TOPIC_CONFIGS.values() if config.synonym),
        Config(
            name="auto.create.topics.enable",
            kind=_BOOLEAN,
            default="true",
            documentation="Whether a client's request for the metadata of an unknown topic creates it.",
        ),
        Config(
            name="num.partitions",
            kind=_INT,
            default="1",
            check=between(1, 10_000),
            documentation="Partitions of a topic that is created without a number.",
        ),
        Config(
            name="producer.id.expiration.ms",
            kind=_INT,
            default=str(_DAY_MS),
            check=at_least(1),
            documentation="How long a partition remembers a silent producer at least; a transaction's longest timeout "
            "where that is longer. It is forgotten before twice that time and two retention checks are over.",
        ),
        _at_start(
            "connections.max.idle.ms", _LONG, 600_000, at_least(-1), "Time after which an idle connection is closed."
        ),
        Config(
            name="group.consumer.assignors",
            kind=_LIST,
            default="uniform,range",
            check=_assignors,
            documentation="What a group of the consumer protocol may be assigned by; the first one is the default.",
            read_only=True,
        ),
        _at_start(
            "group.consumer.heartbeat.interval.ms",
            _INT,
            5_000,
            at_least(1),
            "Time between two heartbeats of a member of the consumer protocol.",
        ),
        _at_start(
            "group.consumer.max.heartbeat.interval.ms", _INT, 15_000, at_least(1), "The longest a group may set."
        ),
        _at_start(
            "group.consumer.max.session.timeout.ms", _INT, 60_000, at_least(1), "The longest session a group may set."
        ),
        _at_start("group.consumer.max.size", _INT, INT_MAX, at_least(1), "Members of one group of that protocol."),
        Config(
            name="group.consumer.migration.policy",
            kind=_STRING,
            default="bidirectional",
            check=one_of("bidirectional", "upgrade", "downgrade", "disabled"),
            documentation="Between which protocols a group may go over while it has members.",
            read_only=True,
        ),
        _at_start(
            "group.consumer.min.heartbeat.interval.ms", _INT, 5_000, at_least(1), "The shortest a group may set."
        ),
        _at_start(
            "group.consumer.min.session.timeout.ms", _INT, 45_000, at_least(1), "The shortest session a group may set."
        ),
        _at_start(
            "group.consumer.session.timeout.ms",
            _INT,
            45_000,
            at_least(1),
            "Silence after which a member of the consumer protocol is taken for dead.",
        ),
        _at_start(
            "group.initial.rebalance.delay.ms", _INT, 3_000, at_least(0), "How long a new group waits for more members."
        ),
        _at_start(
            "group.max.session.timeout.ms", _INT, 1_800_000, at_least(1), "The longest session timeout of a member."
        ),
        _at_start("group.max.size", _INT, INT_MAX, at_least(1), "Members of one group."),
        _at_start(
            "group.min.session.timeout.ms", _INT, 6_000, at_least(1), "The shortest session timeout of a member."
        ),
        _at_start("log.cleaner.backoff.ms", _LONG, 15_000, at_least(1), "Time between two looks for what to compact."),
        _at_start(
            "log.retention.check.interval.ms", _LONG, 300_000, at_least(1), "Time between two looks for old data."
        ),
        _at_start("offset.metadata.max.bytes", _INT, 4_096, at_least(0), "The longest text committed with an offset."),
        _at_start(
            "offsets.retention.minutes", _INT, 10_080, at_least(1), "How long offsets outlive a group's members."
        ),
        _at_start("queued.max.request.bytes", _LONG, -1, at_least(-1), "Bytes of requests in flight; -1 is 512 MiB."),
        _at_start("socket.request.max.bytes", _INT, 104_857_600, at_least(1), "The largest request in bytes."),
        _at_start(
            "transaction.max.timeout.ms", _INT, 900_000, at_least(1), "The longest timeout that a producer may ask for."
        ),
        _at_start(
            "transactional.id.expiration.ms",
            _INT,
            604_800_000,
            at_least(1),
            "How long an unused transactional id is kept.",
        ),
        _fact("default.replication.factor", _INT, "1", "Copies of a partition. Redis replicates, so Kafka sees one."),
        _fact("delete.topic.enable", _BOOLEAN, "true", "Whether topics can be deleted."),
        _fact("log.flush.scheduler.interval.ms", _LONG, str(LONG_MAX), "Time between two looks for what to flush."),
        _fact("log.retention.hours", _INT, "168", "The retention where nothing else sets one."),
        _fact("log.roll.hours", _INT, "168", "Age at which a log file is closed. Korvet has no log files."),
        _fact("log.roll.jitter.hours", _INT, "0", "Spread of that age."),
        _fact("max.incremental.fetch.session.cache.slots", _INT, "0", "Fetch sessions kept. Korvet keeps none."),
        _fact("max.request.partition.size.limit", _INT, "2000", "Partitions in one DescribeTopicPartitions answer."),
        _fact(
            "transaction.abort.timed.out.transaction.cleanup.interval.ms",
            _INT,
            "1000",
            "Time between two looks for transactions that lasted too long.",
        ),
        _fact(
            "transaction.partition.verification.enable",
            _BOOLEAN,
            "true",
            "Whether a batch must belong to an open transaction of its producer to be taken for one.",
        ),
        _fact("transaction.remove.expired.transaction.cleanup.interval.ms", _INT, "1000", "The same for expired ids."),
        _fact("transaction.state.log.num.partitions", _INT, "16", "Shards of the transactions' state."),
        _fact("transaction.state.log.replication.factor", _SHORT, "1", "Copies of it, as Kafka sees them."),
        _fact("transaction.two.phase.commit.enable", _BOOLEAN, "false", "Whether others may decide on transactions."),
        _fact("offsets.topic.replication.factor", _SHORT, "1", "Copies of committed offsets, as Kafka sees them."),
    ]
)


def _of_group(name: str, default: int, documentation: str) -> Config:
    return Config(
        name=name,
        kind=_INT,
        default=str(default),
        synonym=f"group.{name}",
        documentation=documentation,
        check=at_least(1),
    )


GROUP_CONFIGS: Final = _table(
    [
        _of_group("consumer.heartbeat.interval.ms", 5_000, "Time between two heartbeats of a member."),
        _of_group("consumer.session.timeout.ms", 45_000, "Silence after which a member is taken for dead."),
    ]
)
"""What can be set for a group; of the consumer protocol only it acts. The synonym is the broker's default."""

GROUP_FACTS: Final = _table(
    [
        Config(
            name="korvet.group.id",
            kind=_STRING,
            default=None,
            documentation="The group's own id. It stays while the group exists, whoever comes and goes.",
            read_only=True,
        ),
        Config(
            name="korvet.group.locator",
            kind=_STRING,
            default=None,
            documentation="The group as a resource: <namespace>/consumer-groups/<group>.",
            read_only=True,
        ),
        Config(
            name="korvet.group.waits",
            kind=_STRING,
            default=None,
            documentation="Why a group of the consumer protocol is not Stable yet: who has to give up what, and who "
            "waits for it, with semicolons between.",
            read_only=True,
        ),
    ]
)
