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
            Panel(title="Front-ends that serve", queries=[("sum(korvet_workers_up)", "up")], is_stat=True),
            Panel(title="Front-ends that should", queries=[("sum(korvet_workers)", "workers")], is_stat=True),
            Panel(title="Connections", queries=[("sum(korvet_connections)", "connections")], is_stat=True),
        ],
        [
            Panel(
                title="Requests",
                queries=[(f"sum by (api) ({rate('korvet_requests_total')})", "{{api}}")],
                unit="reqps",
            ),
            Panel(
                title="Error codes in answers",
                queries=[(f"sum by (api, error) ({rate('korvet_request_errors_total')})", "{{api}} {{error}}")],
                unit="cps",
            ),
        ],
        [
            Panel(
                title="Time to the answer, 99 of 100",
                text="Without requests that wait by intent.",
                queries=[
                    (quantile(0.99, f"korvet_request_duration_seconds_bucket{{{_WAITING}}}", "api, "), "{{api}}"),
                ],
                unit="s",
            ),
            Panel(
                title="Bytes in and out",
                queries=[
                    (f"sum({rate('korvet_request_bytes_total')})", "in"),
                    (f"sum({rate('korvet_response_bytes_total')})", "out"),
                ],
                unit="Bps",
            ),
        ],
        [
            Panel(
                title="Connections by listener and login",
                queries=[
                    ("sum by (listener, mechanism) (korvet_connections)", "{{listener}} {{mechanism}}"),
                    ("sum by (namespace) (korvet_clients)", "in the namespace {{namespace}}"),
                    ("sum(korvet_connections_limit)", "limit"),
                ],
            ),
            Panel(
                title="New connections and logins",
                queries=[
                    (f"sum by (listener) ({rate('korvet_connections_accepted_total')})", "new at {{listener}}"),
                    (f"sum by (mechanism, outcome) ({rate('korvet_logins_total')})", "{{mechanism}} {{outcome}}"),
                ],
                unit="cps",
            ),
            Panel(
                title="Refused and cut-off clients",
                text="The event is that of the log's line.",
                queries=[
                    (f"sum by (event) ({rate('korvet_client_events_total')})", "{{event}}"),
                    (f"sum({rate('korvet_throttles_total')})", "throttled for a quota"),
                    (f"sum({rate('korvet_throttle_seconds_total')})", "seconds of throttles"),
                ],
                unit="cps",
            ),
        ],
        [
            Panel(
                title="Lateness of the event loops",
                queries=[
                    (quantile(0.5, "korvet_loop_lag_seconds_bucket"), "half"),
                    (quantile(0.99, "korvet_loop_lag_seconds_bucket"), "99 of 100"),
                ],
                unit="s",
            ),
            Panel(
                title="CPU of the front-ends",
                queries=[(rate("korvet_worker_cpu_seconds_total"), "{{instance}} {{worker}}")],
                unit="percentunit",
            ),
            Panel(
                title="Memory of the front-ends",
                queries=[
                    ("korvet_worker_resident_bytes", "{{instance}} {{worker}}"),
                    ("sum(korvet_queued_request_bytes)", "queued requests"),
                    ("sum(korvet_queued_response_bytes)", "queued answers"),
                ],
                unit="bytes",
            ),
        ],
    ],
)

TOPICS: Final = Dashboard(
    name="topics",
    title="Korvet: topics",
    variables={**NAMESPACE, "topic": 'label_values(korvet_partition_end_offset{namespace=~"$namespace"}, topic)'},
    rows=[
        [
            Panel(
                title="Topics", is_stat=True,
                queries=[('max by (namespace) (korvet_topics{namespace=~"$namespace"})', "{{namespace}}")],
            ),
            Panel(
                title="Partitions", is_stat=True,
                queries=[('max by (namespace) (korvet_partitions{namespace=~"$namespace"})', "{{namespace}}")],
            ),
            Panel(
                title="Bytes in logs", is_stat=True, unit="bytes",
                queries=[
                    (
                        f"sum(max by (namespace, topic, partition) (korvet_partition_size_bytes{{{TOPIC}}}))",
                        "bytes",
                    )
                ],
            ),
        ],
        [
            Panel(
                title="Records, the ten fastest topics",
                queries=[
                    (
                        "topk(10, sum by (namespace, topic) (max by (namespace, topic, partition) "
                        f"({rate(f'korvet_partition_end_offset{{{TOPIC}}}')})))",
                        "{{namespace}} {{topic}}",
                    )
                ],
                unit="rowsps",
            ),
            Panel(
                title="Bytes, the ten fastest topics",
                queries=[
                    (
                        "topk(10, sum by (namespace, topic) (max by (namespace, topic, partition) "
                        f"({rate(f'korvet_partition_appended_bytes_total{{{TOPIC}}}')})))",
                        "{{namespace}} {{topic}}",
                    )
                ],
                unit="Bps",
            ),
        ],
        [
            Panel(
                title="Size, the ten largest topics",
                queries=[
                    (
                        "topk(10, sum by (namespace, topic) (max by (namespace, topic, partition) "
                        f"(korvet_partition_size_bytes{{{TOPIC}}})))",
                        "{{namespace}} {{topic}}",
                    )
                ],
                unit="bytes",
            ),
            Panel(
                title="Records in logs, the ten longest topics",
                queries=[
                    (
                        "topk(10, sum by (namespace, topic) (max by (namespace, topic, partition) "
                        f"(korvet_partition_end_offset{{{TOPIC}}} - korvet_partition_start_offset{{{TOPIC}}})))",
                        "{{namespace}} {{topic}}",
                    )
                ],
            ),
        ],
        [
            Panel(
                title="Leader epochs, the ten most",
                text="More than one means that the history of Redis changed: a failover, or a restart.",
                queries=[
                    (
                        "topk(10, max by (namespace, topic, partition) "
                        f"(korvet_partition_leader_epochs{{{TOPIC}}}))",
                        "{{namespace}} {{topic}}-{{partition}}",
                    )
                ],
            ),
            Panel(
                title="Open transactions, the ten oldest",
                queries=[
                    (
                        "topk(10, max by (namespace, topic, partition) "
                        f"(korvet_partition_open_transaction_seconds{{{TOPIC}}}))",
                        "{{namespace}} {{topic}}-{{partition}}",
                    )
                ],
                unit="s",
            ),
            Panel(
                title="Records that the archive lacks",
                queries=[
                    (
                        "topk(10, sum by (namespace, topic) (max by (namespace, topic, partition) "
                        f"(korvet_archive_lag{{{TOPIC}}})))",
                        "{{namespace}} {{topic}}",
                    )
                ],
            ),
        ],
    ],
)  # fmt: skip

GROUPS: Final = Dashboard(
    name="groups",
    title="Korvet: groups and lag",
    variables={**NAMESPACE, "group": 'label_values(korvet_group_members{namespace=~"$namespace"}, group)'},
    rows=[
        [
            Panel(
                title="Groups by state",
                queries=[
                    (
                        'max by (namespace, type, state) (korvet_groups{namespace=~"$namespace"})',
                        "{{namespace}} {{type}} {{state}}",
                    )
                ],
            ),
            Panel(
                title="Lag, the ten furthest behind",
                queries=[
                    (
                        "topk(10, sum by (namespace, group) (max by (namespace, group, topic, partition) "
                        f"(korvet_group_lag{{{GROUP}}})))",
                        "{{namespace}} {{group}}",
                    )
                ],
            ),
        ],
        [
            Panel(
                title="Lag by partition, the twenty furthest behind",
                queries=[
                    (
                        "topk(20, max by (namespace, group, topic, partition) "
                        f"(korvet_group_lag{{{GROUP}}}))",
                        "{{group}} {{topic}}-{{partition}}",
                    )
                ],
            ),
            Panel(
                title="Records that are committed, the ten fastest groups",
                queries=[
                    (
                        "topk(10, sum by (namespace, group) (max by (namespace, group, topic, partition) "
                        f"({rate(f'korvet_group_offset{{{GROUP}}}')})))",
                        "{{namespace}} {{group}}",
                    )
                ],
                unit="rowsps",
            ),
        ],
        [
            Panel(
                title="Members, the ten largest groups",
                queries=[
                    (
                        f"topk(10, max by (namespace, group) (korvet_group_members{{{GROUP}}}))",
                        "{{namespace}} {{group}}",
                    )
                ],
            ),
            Panel(
                title="Transactional ids by state",
                queries=[
                    (
                        'max by (namespace, state) (korvet_transactional_ids{namespace=~"$namespace"})',
                        "{{namespace}} {{state}}",
                    )
                ],
            ),
        ],
    ],
)  # fmt: skip

REDIS: Final = Dashboard(
    name="redis",
    title="Korvet: Redis",
    variables={},
    rows=[
        [
            Panel(
                title="Links that are down", is_stat=True,
                queries=[("sum(korvet_redis_links) - sum(korvet_redis_links_up)", "links")],
            ),
            Panel(
                title="Servers that take writes", is_stat=True,
                queries=[("sum(max by (server) (korvet_redis_takes_writes))", "servers")],
            ),
            Panel(
                title="Outages", is_stat=True,
                queries=[("max(korvet_redis_outages_total)", "outages")],
            ),
        ],
        [
            Panel(
                title="Memory",
                queries=[
                    ("max by (server) (korvet_redis_used_bytes)", "{{server}} used"),
                    ("max by (server) (korvet_redis_maxmemory_bytes)", "{{server}} maxmemory"),
                    ("max by (server) (korvet_redis_left_for_producers_bytes)", "{{server}} left for producers"),
                ],
                unit="bytes",
            ),
            Panel(
                title="Time of a command",
                queries=[
                    (quantile(0.5, "korvet_redis_wait_seconds_bucket", "purpose, "), "{{purpose}}, half"),
                    (quantile(0.99, "korvet_redis_wait_seconds_bucket", "purpose, "), "{{purpose}}, 99 of 100"),
                ],
                unit="s",
            ),
        ],
        [
            Panel(
                title="Commands",
                queries=[(f"sum by (purpose) ({rate('korvet_redis_wait_seconds_count')})", "{{purpose}}")],
                unit="cps",
            ),
            Panel(
                title="Records to and from the tier",
                queries=[
                    (f"sum ({rate('korvet_tier_written_bytes_total')})", "written per second"),
                    (f"sum ({rate('korvet_tier_read_bytes_total')})", "read per second"),
                    ("sum (korvet_tier_waiting_bytes)", "waiting"),
                ],
                unit="bytes",
            ),
            Panel(
                title="Reads by what answered them",
                queries=[(f"sum by (source) ({rate('korvet_reads_total')})", "{{source}}")],
                unit="cps",
            ),
            Panel(
                title="Read cache",
                queries=[
                    ("sum by (kind) (korvet_read_cache_bytes)", "{{kind}}"),
                ],
                unit="bytes",
            ),
        ],
        [
            Panel(
                title="Placed batches out of memory",
                queries=[
                    (f"sum({rate('korvet_placed_batch_hits_total')})", "hits"),
                    (f"sum({rate('korvet_placed_batch_misses_total')})", "misses"),
                ],
                unit="cps",
            ),
            Panel(
                title="Background work: share of time",
                queries=[(f"sum by (sweep) ({rate('korvet_sweep_seconds_total')})", "{{sweep}}")],
                unit="percentunit",
            ),
            Panel(
                title="Background work: steps and failures",
                queries=[
                    (f"sum by (sweep) ({rate('korvet_sweeps_total')})", "{{sweep}}"),
                    (f"sum by (sweep) ({rate('korvet_sweep_failures_total')})", "{{sweep}} failed"),
                ],
                unit="cps",
            ),
            Panel(
                title="Failures of the tier",
                queries=[
                    (f"sum ({rate('korvet_tier_read_failures_total')})", "reads"),
                    (f"sum ({rate('korvet_tier_write_failures_total')})", "writes"),
                    (f"sum ({rate('korvet_tier_request_failures_total')})", "requests"),
                ],
                unit="cps",
            ),
        ],
        [
            Panel(
                title="Histories, outages and lost links",
                queries=[
                    ("max(korvet_redis_histories_total)", "histories"),
                    ("max(korvet_redis_outage_seconds_total)", "seconds of outages"),
                    ("sum by (server) (korvet_redis_links_lost_total)", "{{server}} links lost"),
                ],
            ),
            Panel(
                title="Time of a look at all topics and groups",
                queries=[("max by (namespace) (korvet_metrics_round_seconds)", "{{namespace}}")],
                unit="s",
            ),
        ],
    ],
)  # fmt: skip

DASHBOARDS: Final = {f"{one.name}.json": one for one in (CLUSTER, TOPICS, GROUPS, REDIS, PIPELINE)}
