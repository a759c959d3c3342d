"""The cluster, topics, groups and Redis."""

from typing import Final

from scripts.generated.dashboards.dashboard import Dashboard, Panel
from scripts.generated.dashboards.pipeline import PIPELINE
from scripts.generated.dashboards.queries import GROUP, NAMESPACE, TOPIC, quantile, rate

_WAITING: Final = 'api!~"Fetch|JoinGroup|SyncGroup"'

CLUSTER: Final = Dashboard(
    name="cluster",
    title="Korvet: cluster",
    variables={},
    rows=[
        [
            Panel("Front-ends that serve", ("sum(korvet_workers_up)", "up"), is_stat=True),
            Panel("Front-ends that should", ("sum(korvet_workers)", "workers"), is_stat=True),
            Panel("Connections", ("sum(korvet_connections)", "connections"), is_stat=True),
        ],
        [
            Panel("Requests", (f"sum by (api) ({rate('korvet_requests_total')})", "{{api}}"), unit="reqps"),
            Panel("Error codes in answers",
                  (f"sum by (api, error) ({rate('korvet_request_errors_total')})", "{{api}} {{error}}"), unit="cps"),
        ],
        [
            Panel("Time to the answer, 99 of 100",
                  (quantile(0.99, f"korvet_request_duration_seconds_bucket{{{_WAITING}}}", "api, "), "{{api}}"),
                  text="Without requests that wait by intent.", unit="s"),
            Panel("Bytes in and out", (f"sum({rate('korvet_request_bytes_total')})", "in"),
                  (f"sum({rate('korvet_response_bytes_total')})", "out"), unit="Bps"),
        ],
        [
            Panel("Connections by listener and login",
                  ("sum by (listener, mechanism) (korvet_connections)", "{{listener}} {{mechanism}}"),
                  ("sum by (namespace) (korvet_clients)", "in the namespace {{namespace}}"),
                  ("sum(korvet_connections_limit)", "limit")),
            Panel("New connections and logins",
                  (f"sum by (listener) ({rate('korvet_connections_accepted_total')})", "new at {{listener}}"),
                  (f"sum by (mechanism, outcome) ({rate('korvet_logins_total')})", "{{mechanism}} {{outcome}}"),
                  unit="cps"),
            Panel("Refused and cut-off clients",
                  (f"sum by (event) ({rate('korvet_client_events_total')})", "{{event}}"),
                  (f"sum({rate('korvet_throttles_total')})", "throttled for a quota"),
                  (f"sum({rate('korvet_throttle_seconds_total')})", "seconds of throttles"),
                  text="The event is that of the log's line.", unit="cps"),
        ],
        [
            Panel("Lateness of the event loops", (quantile(0.5, "korvet_loop_lag_seconds_bucket"), "half"),
                  (quantile(0.99, "korvet_loop_lag_seconds_bucket"), "99 of 100"), unit="s"),
            Panel("CPU of the front-ends", (rate("korvet_worker_cpu_seconds_total"), "{{instance}} {{worker}}"),
                  unit="percentunit"),
            Panel("Memory of the front-ends", ("korvet_worker_resident_bytes", "{{instance}} {{worker}}"),
                  ("sum(korvet_queued_request_bytes)", "queued requests"),
                  ("sum(korvet_queued_response_bytes)", "queued answers"), unit="bytes"),
        ],
    ],
)  # fmt: skip

TOPICS: Final = Dashboard(
    name="topics",
    title="Korvet: topics",
    variables={**NAMESPACE, "topic": 'label_values(korvet_partition_end_offset{namespace=~"$namespace"}, topic)'},
    rows=[
        [
            Panel("Topics", ('max by (namespace) (korvet_topics{namespace=~"$namespace"})', "{{namespace}}"),
                  is_stat=True),
            Panel("Partitions", ('max by (namespace) (korvet_partitions{namespace=~"$namespace"})', "{{namespace}}"),
                  is_stat=True),
            Panel("Bytes in logs",
                  (f"sum(max by (namespace, topic, partition) (korvet_partition_size_bytes{{{TOPIC}}}))", "bytes"),
                  is_stat=True, unit="bytes"),
        ],
        [
            Panel("Records, the ten fastest topics",
                  ("topk(10, sum by (namespace, topic) (max by (namespace, topic, partition) "
                   f"({rate(f'korvet_partition_end_offset{{{TOPIC}}}')})))", "{{namespace}} {{topic}}"), unit="rowsps"),
            Panel("Bytes, the ten fastest topics",
                  ("topk(10, sum by (namespace, topic) (max by (namespace, topic, partition) "
                   f"({rate(f'korvet_partition_appended_bytes_total{{{TOPIC}}}')})))", "{{namespace}} {{topic}}"),
                  unit="Bps"),
        ],
        [
            Panel("Size, the ten largest topics",
                  ("topk(10, sum by (namespace, topic) (max by (namespace, topic, partition) "
                   f"(korvet_partition_size_bytes{{{TOPIC}}})))", "{{namespace}} {{topic}}"), unit="bytes"),
            Panel("Records in logs, the ten longest topics",
                  ("topk(10, sum by (namespace, topic) (max by (namespace, topic, partition) "
                   f"(korvet_partition_end_offset{{{TOPIC}}} - korvet_partition_start_offset{{{TOPIC}}})))",
                   "{{namespace}} {{topic}}")),
        ],
        [
            Panel("Leader epochs, the ten most",
                  (f"topk(10, max by (namespace, topic, partition) (korvet_partition_leader_epochs{{{TOPIC}}}))",
                   "{{namespace}} {{topic}}-{{partition}}"),
                  text="More than one means that the history of Redis changed: a failover, or a restart."),
            Panel("Open transactions, the ten oldest",
                  ("topk(10, max by (namespace, topic, partition) "
                   f"(korvet_partition_open_transaction_seconds{{{TOPIC}}}))", "{{namespace}} {{topic}}-{{partition}}"),
                  unit="s"),
            Panel("Records that the archive lacks",
                  ("topk(10, sum by (namespace, topic) (max by (namespace, topic, partition) "
                   f"(korvet_archive_lag{{{TOPIC}}})))", "{{namespace}} {{topic}}")),
        ],
    ],
)  # fmt: skip

GROUPS: Final = Dashboard(
    name="groups",
    title="Korvet: groups and lag",
    variables={**NAMESPACE, "group": 'label_values(korvet_group_members{namespace=~"$namespace"}, group)'},
    rows=[
        [
            Panel("Groups by state",
                  ('max by (namespace, type, state) (korvet_groups{namespace=~"$namespace"})',
                   "{{namespace}} {{type}} {{state}}")),
            Panel("Lag, the ten furthest behind",
                  ("topk(10, sum by (namespace, group) (max by (namespace, group, topic, partition) "
                   f"(korvet_group_lag{{{GROUP}}})))", "{{namespace}} {{group}}")),
        ],
        [
            Panel("Lag by partition, the twenty furthest behind",
                  (f"topk(20, max by (namespace, group, topic, partition) (korvet_group_lag{{{GROUP}}}))",
                   "{{group}} {{topic}}-{{partition}}")),
            Panel("Records that are committed, the ten fastest groups",
                  ("topk(10, sum by (namespace, group) (max by (namespace, group, topic, partition) "
                   f"({rate(f'korvet_group_offset{{{GROUP}}}')})))", "{{namespace}} {{group}}"), unit="rowsps"),
        ],
        [
            Panel("Members, the ten largest groups",
                  (f"topk(10, max by (namespace, group) (korvet_group_members{{{GROUP}}}))",
                   "{{namespace}} {{group}}")),
            Panel("Transactional ids by state",
                  ('max by (namespace, state) (korvet_transactional_ids{namespace=~"$namespace"})',
                   "{{namespace}} {{state}}")),
        ],
    ],
)  # fmt: skip

REDIS: Final = Dashboard(
    name="redis",
    title="Korvet: Redis",
    variables={},
    rows=[
        [
            Panel("Links that are down", ("sum(korvet_redis_links) - sum(korvet_redis_links_up)", "links"),
                  is_stat=True),
            Panel("Servers that take writes", ("sum(max by (server) (korvet_redis_takes_writes))", "servers"),
                  is_stat=True),
            Panel("Outages", ("max(korvet_redis_outages_total)", "outages"), is_stat=True),
        ],
        [
            Panel("Memory", ("max by (server) (korvet_redis_used_bytes)", "{{server}} used"),
                  ("max by (server) (korvet_redis_maxmemory_bytes)", "{{server}} maxmemory"),
                  ("max by (server) (korvet_redis_left_for_producers_bytes)", "{{server}} left for producers"),
                  unit="bytes"),
            Panel("Time of a command",
                  (quantile(0.5, "korvet_redis_wait_seconds_bucket", "purpose, "), "{{purpose}}, half"),
                  (quantile(0.99, "korvet_redis_wait_seconds_bucket", "purpose, "), "{{purpose}}, 99 of 100"),
                  unit="s"),
        ],
        [
            Panel("Commands", (f"sum by (purpose) ({rate('korvet_redis_wait_seconds_count')})", "{{purpose}}"),
                  unit="cps"),
            Panel("Records to and from the tier",
                  (f"sum ({rate('korvet_tier_written_bytes_total')})", "written per second"),
                  (f"sum ({rate('korvet_tier_read_bytes_total')})", "read per second"),
                  ("sum (korvet_tier_waiting_bytes)", "waiting"), unit="bytes"),
            Panel("Reads by what answered them", (f"sum by (source) ({rate('korvet_reads_total')})", "{{source}}"),
                  unit="cps"),
            Panel("Read cache", ("sum by (kind) (korvet_read_cache_bytes)", "{{kind}}"), unit="bytes"),
        ],
        [
            Panel("Placed batches out of memory", (f"sum({rate('korvet_placed_batch_hits_total')})", "hits"),
                  (f"sum({rate('korvet_placed_batch_misses_total')})", "misses"), unit="cps"),
            Panel("Background work: share of time",
                  (f"sum by (sweep) ({rate('korvet_sweep_seconds_total')})", "{{sweep}}"), unit="percentunit"),
            Panel("Background work: steps and failures",
                  (f"sum by (sweep) ({rate('korvet_sweeps_total')})", "{{sweep}}"),
                  (f"sum by (sweep) ({rate('korvet_sweep_failures_total')})", "{{sweep}} failed"), unit="cps"),
            Panel("Failures of the tier", (f"sum ({rate('korvet_tier_read_failures_total')})", "reads"),
                  (f"sum ({rate('korvet_tier_write_failures_total')})", "writes"),
                  (f"sum ({rate('korvet_tier_request_failures_total')})", "requests"), unit="cps"),
        ],
        [
            Panel("Histories, outages and lost links", ("max(korvet_redis_histories_total)", "histories"),
                  ("max(korvet_redis_outage_seconds_total)", "seconds of outages"),
                  ("sum by (server) (korvet_redis_links_lost_total)", "{{server}} links lost")),
            Panel("Time of a look at all topics and groups",
                  ("max by (namespace) (korvet_metrics_round_seconds)", "{{namespace}}"), unit="s"),
        ],
    ],
)  # fmt: skip

DASHBOARDS: Final = {f"{one.name}.json": one for one in (CLUSTER, TOPICS, GROUPS, REDIS, PIPELINE)}
