"""Every metric: its name, kind, labels and meaning, and the JMX name of Kafka's if there is one.

docs/metrics.md shows the same table. Tests compare it, this module and the output of `/metrics`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from korvet.metrics.buckets import LAG_BOUNDS_S, REQUEST_BOUNDS_S
from korvet.redis.resp import WAIT_BOUNDS_S


class Kind(StrEnum):
    """The kind of a metric, as Prometheus says."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"
    """Its value is the count of each bucket, the last one without a bound, and then the sum."""


class Joined(StrEnum):
    """How the figures of several workers become one."""

    SUM = "sum"
    MOST = "most"
    """The highest: all of them look at the same thing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """A metric. A counter's name ends in ``_total``. ``bounds_s`` are the upper bounds of a histogram's buckets."""

    name: str
    kind: Kind
    text: str
    labels: tuple[str, ...] = ()
    jmx: str = ""
    joined: Joined = Joined.SUM
    bounds_s: tuple[float, ...] = ()


def _table(*families: Family) -> Mapping[str, Family]:
    return {family.name: family for family in families}


def _counter(name: str, text: str, *labels: str, jmx: str = "", joined: Joined = Joined.SUM) -> Family:
    return Family(name=f"korvet_{name}_total", kind=Kind.COUNTER, text=text, labels=labels, jmx=jmx, joined=joined)


def _gauge(name: str, text: str, *labels: str, jmx: str = "", joined: Joined = Joined.SUM) -> Family:
    return Family(name=f"korvet_{name}", kind=Kind.GAUGE, text=text, labels=labels, jmx=jmx, joined=joined)


def _histogram(name: str, text: str, bounds_s: tuple[float, ...], *labels: str, jmx: str = "") -> Family:
    return Family(name=f"korvet_{name}", kind=Kind.HISTOGRAM, text=text, labels=labels, jmx=jmx, bounds_s=bounds_s)


_REQUESTS = "kafka.network:type=RequestMetrics,name="
_SOCKETS = "kafka.server:type=socket-server-metrics:"

REQUESTS = _table(
    _counter("requests", "Answered requests.", "api", "version", jmx=f"{_REQUESTS}RequestsPerSec"),
    _counter("request_errors", "Error codes in answers, up to a thousand of an answer.", "api", "error",
             jmx=f"{_REQUESTS}ErrorsPerSec"),
    _histogram("request_duration_seconds",
               "Time from a request's arrival to its answer, with the time that a Fetch or a join waits.",
               REQUEST_BOUNDS_S, "api", jmx=f"{_REQUESTS}TotalTimeMs"),
    _counter("request_bytes", "Bytes of answered requests.", "api", jmx=f"{_REQUESTS}RequestBytes"),
    _counter("response_bytes", "Bytes of answers.", "api", jmx=f"{_REQUESTS}ResponseBytes"),
    _gauge("queued_request_bytes", "Memory of requests without an answer; its bound is queued.max.request.bytes.",
           jmx="kafka.network:type=RequestChannel,name=RequestQueueSize"),
    _gauge("queued_response_bytes", "Memory of answers that clients have not taken.",
           jmx="kafka.network:type=RequestChannel,name=ResponseQueueSize"),
)  # fmt: skip

CONNECTIONS = _table(
    _gauge("connections", "Open connections, by listener and by the mechanism of the login (none without one).",
           "listener", "mechanism", jmx=f"{_SOCKETS}connection-count"),
    _gauge("clients", "Connections that asked for something in a namespace.", "namespace"),
    _counter("throttles", "Times that a connection was not read because its client was over a quota."),
    _counter("throttle_seconds", "The length of these times.",
             jmx="kafka.server:type=Produce,user=…,client-id=…,name=throttle-time"),
    _gauge("connections_limit", "Connections for which max.connections and the file descriptors suffice."),
    _counter("connections_accepted", "Accepted connections.", "listener", jmx=f"{_SOCKETS}connection-creation-total"),
    _counter("logins", "Logins by their outcome: success or failure.", "listener", "mechanism", "outcome",
             jmx=f"{_SOCKETS}successful-authentication-total, failed-authentication-total"),
    _counter(
        "client_events",
        "Refusals, cut-offs and failures of clients, by the event of the log's line; also those left out of the log.",
        "event",
    ),
)  # fmt: skip

REDIS = _table(
    _histogram("redis_wait_seconds", "Time from a command's sending to its reply.", WAIT_BOUNDS_S, "purpose"),
    _gauge("redis_links", "Connections that the front-ends keep to each Redis server.", "server", "purpose"),
    _gauge("redis_links_up", "Those of them that are up.", "server", "purpose"),
    _counter("redis_links_lost", "Connections to Redis that were lost.", "server"),
    _gauge("redis_takes_writes", "Whether a server takes writes and has korvet's library.", "server",
           joined=Joined.MOST),
    _counter("redis_outages", "Times in which a server could not be written to for 2.5 s.", joined=Joined.MOST),
    _counter("redis_outage_seconds", "The length of these outages.", joined=Joined.MOST),
    _counter("redis_histories", "Changes to another server, run or replication id: new leader epochs begin.",
             jmx="kafka.controller:type=ControllerStats,name=UncleanLeaderElectionsPerSec", joined=Joined.MOST),
    _gauge("redis_used_bytes", "Memory in use that counts against maxmemory.", "server", joined=Joined.MOST),
    _gauge("redis_maxmemory_bytes", "maxmemory; absent without one.", "server", joined=Joined.MOST),
    _gauge("redis_left_for_producers_bytes", "Memory that producers may still take; below 0 they wait.", "server",
           joined=Joined.MOST),
)  # fmt: skip

CLIENTS = _table(
    _gauge("client_info", "1, for each client that pushes metrics, with what it says of itself.", "namespace",
           "client_instance_id", "client_id", "client_software_name", "client_software_version",
           "client_source_address", "principal", "client_rack", "group_id", "group_instance_id", "group_member_id",
           "transactional_id", jmx="kafka.server:type=client-metrics,name=instance-count"),
    _gauge("client_metrics_series", "Series that clients pushed.", "namespace"),
    _counter(
        "client_metrics_dropped",
        "Points that were pushed and are not shown: kind (histograms, differences), size, bound (of a push), clients "
        "(korvet.metrics.max.client.series), principal (the id is another principal's).",
        "namespace", "reason",
    ),
)  # fmt: skip

STORE = _table(
    _counter(
        "reads",
        "Reads of partitions by what answered them: memory, entries (only the batches were asked for), redis, tier.",
        "source",
    ),
    _gauge("read_cache_bytes", "Batches in memory: read ahead of a reader, or kept for all readers.", "kind"),
    _counter("placed_batch_hits", "Placed batches that were in memory when a reader came."),
    _counter("placed_batch_misses", "Placed batches that were not."),
    _counter("sweeps", "Steps of background work.", "sweep"),
    _counter("sweep_failures", "Steps of background work that failed while Redis could be used.", "sweep"),
    _counter("sweep_seconds", "Time of these steps.", "sweep"),
    _gauge("sweep_turn", "Whether this front-end has the namespace's turn to sweep.", "namespace"),
)

_TIER = "kafka.server:type=BrokerTopicMetrics,name="

TIER = _table(
    _counter("tier_written_bytes", "Bytes of batches that became segments.", jmx=f"{_TIER}RemoteCopyBytesPerSec"),
    _counter("tier_written_segments", "Segments that were put into the tier and listed."),
    _counter("tier_write_failures", "Attempts to move a partition's batches, or to own the tier, that failed.",
             jmx=f"{_TIER}RemoteCopyErrorsPerSec"),
    _gauge(
        "tier_waiting_bytes", "Bytes of batches below the last stable offset that are in no segment yet, of the "
        "partitions that this process moves.", jmx=f"{_TIER}RemoteCopyLagBytes",
    ),
    _counter("tier_deleted_objects", "Objects that were deleted from the tier."),
    _counter("tier_read_bytes", "Bytes of batches that readers got from the tier.",
             jmx=f"{_TIER}RemoteFetchBytesPerSec"),
    _counter("tier_read_failures", "Reads of the tier that failed: their readers got an error.",
             jmx=f"{_TIER}RemoteFetchErrorsPerSec"),
    _histogram("tier_request_seconds", "Time of a request to the tier's store, failed ones too.", WAIT_BOUNDS_S),
    _counter("tier_request_failures", "Requests to the tier's store that failed or had no answer in time."),
    _counter("tier_blocks", "Blocks and footers for reads, by where they were: memory, disk or store.", "source"),
    _gauge("tier_cache_bytes", "Blocks and footers of segments in memory."),
)  # fmt: skip

PROCESS = _table(
    Family(
        name="korvet_build_info", kind=Kind.GAUGE, labels=("version", "library"), joined=Joined.MOST,
        text="1, with the versions of the package and of its library.", jmx="kafka.server:type=app-info",
    ),
    _gauge("workers", "Front-end processes that are meant to run.", joined=Joined.MOST),
    _gauge("workers_up", "Front-end processes that accept connections.", joined=Joined.MOST),
    _counter("worker_restarts", "Front-end processes that died and were started again."),
    _gauge("worker_silent_seconds", "Time since a front-end process last reported its figures.", "worker"),
    _counter("worker_cpu_seconds", "CPU time of a front-end process.", "worker"),
    _gauge("worker_resident_bytes", "Resident memory of a front-end process.", "worker"),
    *(
        Family(name=name, kind=kind, text=text, labels=("worker",))
        for name, kind, text in (
            ("process_cpu_seconds_total", Kind.COUNTER, "CPU time of a front-end process."),
            ("process_resident_memory_bytes", Kind.GAUGE, "Resident memory of a front-end process."),
            ("process_virtual_memory_bytes", Kind.GAUGE, "Virtual memory of a front-end process."),
            ("process_start_time_seconds", Kind.GAUGE, "When a front-end process began, in seconds since 1970."),
            ("process_open_fds", Kind.GAUGE, "Open file descriptors of a front-end process."),
            ("process_max_fds", Kind.GAUGE, "Most file descriptors that it may have."),
        )
    ),
    _histogram("loop_lag_seconds", "Lateness of a timer in the front-ends' event loops, four times a second.",
               LAG_BOUNDS_S, jmx="kafka.server:type=KafkaRequestHandlerPool,name=RequestHandlerAvgIdlePercent"),
)  # fmt: skip

_LOG = "kafka.log:type=Log,name="

TOPICS = _table(
    _gauge("topics", "Topics.", "namespace", jmx="kafka.controller:type=KafkaController,name=GlobalTopicCount"),
    _gauge("partitions", "Partitions.", "namespace",
           jmx="kafka.controller:type=KafkaController,name=GlobalPartitionCount"),
    _gauge("partition_start_offset", "The first offset of a log.", "namespace", "topic", "partition",
           jmx=f"{_LOG}LogStartOffset"),
    _gauge("partition_end_offset", "The offset after the last record; its rate is that of records.", "namespace",
           "topic", "partition", jmx=f"{_LOG}LogEndOffset; kafka.server:type=BrokerTopicMetrics,name=MessagesInPerSec"),
    _gauge("partition_size_bytes", "Bytes of the batches in a log.", "namespace", "topic", "partition",
           jmx=f"{_LOG}Size"),
    _counter("partition_appended_bytes", "Bytes of all batches that were ever appended.", "namespace", "topic",
             "partition", jmx="kafka.server:type=BrokerTopicMetrics,name=BytesInPerSec"),
    _gauge("partition_leader_epochs", "Leader epochs of a log; more than one if the history of Redis changed.",
           "namespace", "topic", "partition",
           jmx="kafka.controller:type=ControllerStats,name=UncleanLeaderElectionsPerSec"),
    _gauge("partition_open_transaction_seconds",
           "How long the oldest open transaction of a partition has been seen; absent without one.", "namespace",
           "topic", "partition", jmx="kafka.server:type=ReplicaManager,name=PartitionsWithLateTransactionsCount"),
    _gauge("archive_lag", "Records of a partition that the archive does not hold.", "namespace", "topic", "partition"),
)  # fmt: skip

GROUPS = _table(
    _gauge("groups", "Groups by type and state.", "namespace", "type", "state",
           jmx="kafka.server:type=group-coordinator-metrics,name=group-count"),
    _gauge("group_members", "Members of a group, with its type and state.", "namespace", "group", "type", "state"),
    _gauge("group_offset", "Committed offset, or a share group's start offset.", "namespace", "group", "topic",
           "partition"),
    _gauge("group_lag", "Records from the committed offset on, or those that a share group has not finished.",
           "namespace", "group", "topic", "partition",
           jmx="kafka.consumer:type=consumer-fetch-manager-metrics,name=records-lag"),
    _gauge("transactional_ids", "Transactional ids by their transaction's state.", "namespace", "state"),
)  # fmt: skip

ROUNDS = _table(
    _gauge("metrics_series_dropped", "Series of a metric that korvet.metrics.max.series leaves out.", "namespace",
           "metric"),
    _gauge("metrics_unreadable", "Partitions and groups that could not be read.", "namespace"),
    _gauge("metrics_round_seconds", "Time of the last look at all topics and groups.", "namespace"),
    _gauge("metrics_round_timestamp_seconds", "The end of that look, in seconds since 1970.", "namespace"),
)  # fmt: skip

FAMILIES: Mapping[str, Family] = {
    **REQUESTS, **CONNECTIONS, **CLIENTS, **REDIS, **STORE, **TIER, **PROCESS, **TOPICS, **GROUPS, **ROUNDS
}  # fmt: skip
