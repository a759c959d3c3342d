"""The configs of brokers, by their Kafka names.

The cluster has one set of them, because every front-end serves every request. The table has configs that act, configs
that are a topic's default, and read-only ones that describe korvet.
"""

from __future__ import annotations

from typing import Final

from korvet.configs.oauth import OAUTH_CONFIGS
from korvet.configs.topics import TOPIC_CONFIGS
from korvet.configs.types import (
    INT_MAX,
    LONG_MAX,
    Check,
    Config,
    Kind,
    Value,
    at_least,
    between,
    is_per_ip_overrides,
    is_principals,
    one_of,
    table,
)

MOST_MEMBERS: Final = 10_000
"""The most members of a group; Kafka's default has no bound. One call completes their rebalance (docs/sizing.md)."""
MOST_PARTITIONS: Final = 10_000
"""The most partitions of a topic, and those that one CreateTopics may make (ReplicationControlManager). A request for
all of them is within `korvet.wire.shape.MOST_ELEMENTS`."""
_DAY_MS: Final = 86_400_000
_WINDOWS: Final = "Windows of {}: what these windows allow may be used at once."
_WINDOW: Final = "The seconds of a window of {}."
_BOOLEAN, _STRING, _INT, _LONG, _LIST, _SHORT = Kind.BOOLEAN, Kind.STRING, Kind.INT, Kind.LONG, Kind.LIST, Kind.SHORT
_DOUBLE: Final = Kind.DOUBLE


# The default of each is the value of a config in another unit (ServerTopicConfigSynonyms).
_IN_ANOTHER_UNIT = {
    "log.flush.interval.ms": "log.flush.scheduler.interval.ms",
    "log.retention.ms": "log.retention.hours",
    "log.roll.jitter.ms": "log.roll.jitter.hours",
    "log.roll.ms": "log.roll.hours",
}


def _stand_in(config: Config) -> Config:
    """The broker config that is the default of a topic's config."""
    name = config.synonym or config.name
    return Config(
        name=name,
        kind=config.kind,
        default=None if name in _IN_ANOTHER_UNIT else config.default,
        synonym=_IN_ANOTHER_UNIT.get(name),
        documentation=config.documentation,
        check=config.check,
    )


def _fact(name: str, kind: Kind, value: str, documentation: str) -> Config:
    return Config(name=name, kind=kind, default=value, documentation=documentation, read_only=True, is_fixed=True)


def _at_start(name: str, kind: Kind, default: int, check: Check, documentation: str) -> Config:
    """A config of the front-end's config file, which clients cannot change."""
    return Config(name=name, kind=kind, default=str(default), documentation=documentation, check=check, read_only=True)


def _kept(name: str, kind: Kind, default: str | None, check: Check | None = None) -> Config:
    """A config of Kafka's threads, files and copies that clients may set while Kafka runs."""
    return Config(name=name, kind=kind, default=default, documentation="Kept and shown; it does nothing.", check=check)


THROTTLES: Final = (
    "follower.replication.throttled.rate",
    "leader.replication.throttled.rate",
    "replica.alter.log.dirs.io.max.bytes.per.second",
)
"""Configs that `kafka-reassign-partitions` sets. Like Kafka, korvet shows them only once they are set."""


def _of_shares(name: str, default: int, check: Check, least: int, most: int, documentation: str) -> tuple[Config, ...]:
    """A config of share groups with the least and the greatest value that a group may set."""
    low, high = (f"group.share.{end}.{name}" for end in ("min", "max"))
    return (
        _at_start(f"group.share.{name}", _INT, default, check, documentation),
        _at_start(high, _INT, most, check, f"The greatest group.share.{name} that a group may set."),
        _at_start(low, _INT, least, check, f"The least group.share.{name} that a group may set."),
    )


def _assignors(value: Value) -> str | None:
    """The problem with a list of assignors (empty, or an unknown name), or None."""
    return one_of("uniform", "range")(value) if value else "List must not be empty"


BROKER_CONFIGS: Final = table(
    [
        *(_stand_in(config) for config in TOPIC_CONFIGS.values() if config.synonym),
        Config("allow.everyone.if.no.acl.found", _BOOLEAN, "false", read_only=True,
               documentation="Whether everyone may use a resource for which there is no access rule."),
        Config("authorizer.class.name", _STRING, "",
               check=one_of("", "org.apache.kafka.metadata.authorizer.StandardAuthorizer"), read_only=True,
               documentation="The authorizer; without one, every client may do everything."),
        Config("auto.create.topics.enable", _BOOLEAN, "true",
               documentation="Whether a client's request for the metadata of an unknown topic creates it."),
        Config("errors.deadletterqueue.auto.create.topics.enable", _BOOLEAN, "false", read_only=True,
               documentation="Whether the first dead letter of a share group creates the topic for it."),
        Config("errors.deadletterqueue.topic.name.prefix", _STRING, "dlq.", read_only=True,
               documentation="The beginning that the names of topics for dead letters must have; empty for any."),
        Config("num.partitions", _INT, "1", check=between(1, MOST_PARTITIONS),
               documentation="Partitions of a topic that is created without a number."),
        Config("producer.id.expiration.ms", _INT, str(_DAY_MS), check=at_least(1),
               documentation="The least time that a partition remembers a silent producer, and at least a "
               "transaction's longest timeout. The partition forgets it before twice that time and two retention "
               "checks are over."),
        _at_start("connections.max.idle.ms", _LONG, 600_000, at_least(-1),
                  "Time after which an idle connection is closed."),
        _at_start("connection.failed.authentication.delay.ms", _INT, 100, at_least(0),
                  "Time from a login that fails to its answer."),
        _at_start("connections.max.reauth.ms", _LONG, 0, at_least(0),
                  "Time after which a client must log in again; 0 for never."),
        Config("korvet.sasl.plain.without.tls", _BOOLEAN, "false", read_only=True,
               documentation="Whether PLAIN may be used without TLS, which shows passwords to the network."),
        _at_start("sasl.server.max.receive.size", _INT, 524_288, at_least(1),
                  "The largest request in bytes before the login."),
        Config("group.consumer.assignors", _LIST, "uniform,range", check=_assignors, read_only=True,
               documentation="Assignors that a group of the consumer protocol may use; the first one is the default."),
        _at_start("group.consumer.heartbeat.interval.ms", _INT, 5_000, at_least(1),
                  "Time between two heartbeats of a member of the consumer protocol."),
        _at_start("group.consumer.max.heartbeat.interval.ms", _INT, 15_000, at_least(1),
                  "The longest time between two heartbeats that a group may set."),
        _at_start("group.consumer.max.session.timeout.ms", _INT, 60_000, at_least(1),
                  "The longest session timeout that a group may set."),
        _at_start("group.consumer.max.size", _INT, MOST_MEMBERS, at_least(1),
                  "The most members of a group of the consumer protocol."),
        Config("group.consumer.migration.policy", _STRING, "bidirectional",
               check=one_of("bidirectional", "upgrade", "downgrade", "disabled"), read_only=True,
               documentation="Protocols between which a group may change while it has members."),
        _at_start("group.consumer.min.heartbeat.interval.ms", _INT, 5_000, at_least(1),
                  "The shortest time between two heartbeats that a group may set."),
        _at_start("group.consumer.min.session.timeout.ms", _INT, 45_000, at_least(1),
                  "The shortest session timeout that a group may set."),
        _at_start("group.consumer.session.timeout.ms", _INT, 45_000, at_least(1),
                  "Silence after which a member of the consumer protocol expires."),
        _at_start("group.initial.rebalance.delay.ms", _INT, 3_000, at_least(0),
                  "How long a new group waits for more members."),
        _at_start("group.max.session.timeout.ms", _INT, 1_800_000, at_least(1),
                  "The longest session timeout of a member."),
        Config("group.share.assignors", _LIST, "simple", check=one_of("simple"), read_only=True,
               documentation="The assignor of share groups."),
        *_of_shares("delivery.count.limit", 5, between(2, 25), 2, 10,
                    "How often a record is delivered to a share group."),
        *_of_shares("heartbeat.interval.ms", 5_000, at_least(1), 5_000, 15_000,
                    "Time between two heartbeats of a member."),
        _at_start("group.share.max.share.sessions", _INT, 2_000, at_least(1),
                  "The most share sessions of a front-end process."),
        _at_start("group.share.max.size", _INT, 200, between(1, 1_000), "The most members of a share group."),
        *_of_shares("partition.max.record.locks", 2_000, between(100, 10_000), 100, 4_000,
                    "The most offsets of a share partition in flight."),
        *_of_shares("record.lock.duration.ms", 30_000, between(1_000, 3_600_000), 15_000, 60_000,
                    "How long a member may keep a record."),
        *_of_shares("session.timeout.ms", 45_000, at_least(1), 45_000, 60_000, "Silence after which a member expires."),
        _at_start("group.max.size", _INT, MOST_MEMBERS, at_least(1), "The most members of a classic group."),
        _at_start("group.min.session.timeout.ms", _INT, 6_000, at_least(1),
                  "The shortest session timeout of a member."),
        Config("korvet.max.groups", _INT, "100000", check=at_least(1),
               documentation="The most groups of a namespace; a further one is refused with POLICY_VIOLATION."),
        Config("korvet.max.transactional.ids", _INT, "100000", check=at_least(1),
               documentation="The most transactional ids of a namespace; a further one is refused with "
               "POLICY_VIOLATION."),
        _at_start("korvet.metrics.max.client.series", _INT, 50_000, at_least(0),
                  "The most series of what clients push."),
        _at_start("korvet.metrics.max.series", _INT, 100_000, at_least(0),
                  "The most series of topics, groups and transactions."),
        _at_start("korvet.queued.max.response.bytes", _LONG, -1, at_least(-1),
                  "The most bytes of answers that a front-end reads, holds and sends; -1 is 256 MiB, or an eighth of "
                  "the machine's memory."),
        _at_start("korvet.read.cache.max.bytes", _LONG, -1, at_least(-1),
                  "The most bytes of batches that a front-end keeps for readers; 0 keeps none, -1 is 192 MiB, or a "
                  "sixteenth of the machine's memory."),
        _at_start("korvet.unfinished.request.max.bytes", _LONG, -1, at_least(-1),
                  "The most bytes of large requests that a front-end receives; -1 is 256 MiB, or an eighth of the "
                  "machine's memory."),
        _at_start("log.cleaner.backoff.ms", _LONG, 15_000, at_least(1), "Time between two looks for logs to compact."),
        _at_start("log.retention.check.interval.ms", _LONG, 300_000, at_least(1),
                  "Time between two looks for old data."),
        _at_start("controller.quota.window.num", _INT, 11, at_least(1), _WINDOWS.format("mutations of the controller")),
        _at_start("controller.quota.window.size.seconds", _INT, 1, at_least(1),
                  _WINDOW.format("mutations of the controller")),
        _at_start("max.connection.creation.rate", _INT, INT_MAX, at_least(1),
                  "The most new connections of a front-end in a second. Further ones wait. A listener's own number is "
                  "listener.name.NAME.max.connection.creation.rate."),
        _at_start("max.connections", _INT, INT_MAX, at_least(0),
                  "The most connections of a front-end. Further ones wait until one is closed. A listener's own "
                  "number is listener.name.NAME.max.connections."),
        _at_start("max.connections.per.ip", _INT, INT_MAX, at_least(0),
                  "The most connections from one address to all front-ends. Further ones are closed."),
        Config("max.connections.per.ip.overrides", _STRING, "", check=is_per_ip_overrides, read_only=True,
               documentation="The most connections from some addresses, as in 10.0.0.1:200,10.0.0.2:0."),
        _at_start("offset.metadata.max.bytes", _INT, 4_096, at_least(0), "The longest text committed with an offset."),
        _at_start("offsets.retention.minutes", _INT, 10_080, at_least(1),
                  "How long offsets outlive a group's members."),
        _at_start("quota.window.num", _INT, 11, at_least(1), _WINDOWS.format("clients' quotas")),
        _at_start("quota.window.size.seconds", _INT, 1, at_least(1), _WINDOW.format("clients' quotas")),
        _at_start("queued.max.request.bytes", _LONG, -1, at_least(-1),
                  "The most bytes of requests in flight; -1 is 512 MiB, or a quarter of the machine's memory."),
        *OAUTH_CONFIGS,
        _at_start("socket.request.max.bytes", _INT, 104_857_600, at_least(1), "The largest request in bytes."),
        Config("super.users", _STRING, "", check=is_principals, read_only=True,
               documentation="Principals that may do everything, as in User:admin;User:operator."),
        _at_start("telemetry.max.bytes", _INT, 1_048_576, at_least(1),
                  "The most bytes of metrics that a client may push at once, compressed or not."),
        _at_start("transaction.max.timeout.ms", _INT, 900_000, at_least(1),
                  "The longest timeout that a producer may ask for."),
        _at_start("transactional.id.expiration.ms", _INT, 604_800_000, at_least(1),
                  "How long an unused transactional id is kept."),
        _kept("background.threads", _INT, "10", at_least(1)),
        _kept("log.cleaner.dedupe.buffer.size", _LONG, "134217728"),
        _kept("log.cleaner.io.buffer.load.factor", _DOUBLE, "0.9"),
        _kept("log.cleaner.io.buffer.size", _INT, "524288", at_least(0)),
        _kept("log.cleaner.io.max.bytes.per.second", _DOUBLE, "1.7976931348623157E308"),
        _kept("log.cleaner.threads", _INT, "1", at_least(0)),
        _kept("num.io.threads", _INT, "8", at_least(1)),
        _kept("num.network.threads", _INT, "3", at_least(1)),
        _kept("num.recovery.threads.per.data.dir", _INT, "2", at_least(1)),
        _kept("num.replica.fetchers", _INT, "1"),
        _kept("remote.fetch.max.wait.ms", _INT, "500", at_least(1)),
        _kept("remote.list.offsets.request.timeout.ms", _LONG, "30000", at_least(1)),
        _kept("remote.log.index.file.cache.total.size.bytes", _LONG, str(1 << 30), at_least(1)),
        _kept("remote.log.manager.copier.thread.pool.size", _INT, "10", at_least(1)),
        _kept("remote.log.manager.copy.max.bytes.per.second", _LONG, str(LONG_MAX), at_least(1)),
        _kept("remote.log.manager.expiration.thread.pool.size", _INT, "10", at_least(1)),
        _kept("remote.log.manager.fetch.max.bytes.per.second", _LONG, str(LONG_MAX), at_least(1)),
        _kept("remote.log.reader.threads", _INT, "10", at_least(1)),
        *(_kept(name, _LONG, None, at_least(0)) for name in THROTTLES),
        _fact("default.replication.factor", _INT, "1", "Copies of a partition. Redis replicates, so Kafka sees one."),
        _fact("delete.topic.enable", _BOOLEAN, "true", "Whether topics can be deleted."),
        _fact("log.flush.scheduler.interval.ms", _LONG, str(LONG_MAX), "Time between two looks for logs to flush."),
        _fact("log.retention.hours", _INT, "168", "The retention if nothing else sets one."),
        _fact("log.roll.hours", _INT, "168", "Age at which a log file is closed. Korvet has no log files."),
        _fact("log.roll.jitter.hours", _INT, "0", "Spread of the age at which a log file is closed."),
        _fact("max.incremental.fetch.session.cache.slots", _INT, "0", "Fetch sessions kept. Korvet keeps none."),
        _fact("max.request.partition.size.limit", _INT, "2000", "Partitions in one DescribeTopicPartitions answer."),
        _fact("transaction.abort.timed.out.transaction.cleanup.interval.ms", _INT, "1000",
              "Time between two looks for transactions that lasted too long."),
        _fact("transaction.partition.verification.enable", _BOOLEAN, "true",
              "Whether a batch of a transaction must belong to an open transaction of its producer."),
        _fact("transaction.remove.expired.transaction.cleanup.interval.ms", _INT, "1000",
              "Time between two looks for expired transactional ids."),
        _fact("transaction.state.log.num.partitions", _INT, "16", "Shards of the transactions' state."),
        _fact("transaction.state.log.replication.factor", _SHORT, "1",
              "Copies of the transactions' state, as Kafka sees them."),
        _fact("transaction.two.phase.commit.enable", _BOOLEAN, "false",
              "Whether another system may decide on transactions by a two-phase commit."),
        _fact("offsets.topic.replication.factor", _SHORT, "1", "Copies of committed offsets, as Kafka sees them."),
    ]
)  # fmt: skip


BROKER_FACTS: Final = table(
    [
        Config("advertised.listeners", _STRING, None, read_only=True,
               documentation="The address under which clients find this broker."),
    ]
)  # fmt: skip
"""The configs of a broker that a front-end reports and no client can set."""
