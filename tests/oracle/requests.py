"""One request of each API or more, for clients with different rights.

Requests change nothing even if they are allowed, or the same for both brokers: they ask to validate only, name things
that do not exist, or have something wrong that brokers notice after the rights. "$name" stands for one of the client's
names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from tests.oracle.batches import Batch
from tests.oracle.versions import supported


def _topics(**fields: Any) -> list[Any]:
    return [{"name": f"${word}", **fields} for word in "tuwh"]


_IDS: Final = {"t": "$t_id", "u": "$no_id", "w": "$w_id", "h": None}


def _identified(topics: list[Any]) -> list[Any]:
    """Topics with the ids of their names."""
    return [{**topic, "topic_id": _IDS[topic["name"][1:]]} for topic in topics]


def _parts(**fields: Any) -> list[Any]:
    return _topics(partitions=[{"partition_index": 0, **fields}])


def _indexes(field: str = "partitions", name: str = "name") -> list[Any]:
    return [{name: f"${word}", field: [0]} for word in "tuwh"]


def _produced(transactional_id: str | None = None, attributes: int = 0) -> dict[str, Any]:
    batch = Batch(timestamp="$now", attributes=attributes)
    parts = [{"index": 0, "records": [batch]}]
    topics = [
        {"name": "$t", "topic_id": "$t_id", "partition_data": parts},
        {"name": "$w", "topic_id": "$w_id", "partition_data": parts},
        {"name": "$u", "topic_id": "$no_id", "partition_data": parts},
        {"name": "", "topic_id": None, "partition_data": parts},
    ]
    return {"transactional_id": transactional_id, "acks": -1, "timeout": 5000, "topic_data": topics}


def _fetched(replica_id: int = -1) -> dict[str, Any]:
    parts = [{"partition": 0, "partition_max_bytes": 1 << 20, "fetch_offset": 0, "current_leader_epoch": -1,
              "last_fetched_epoch": -1, "log_start_offset": -1}]  # fmt: skip
    topics = [("$t", "$t_id"), ("$w", "$w_id"), ("$u", "$no_id")]
    return {
        "replica_id": replica_id, "replica_state": {"replica_id": replica_id, "replica_epoch": -1}, "max_wait": 0,
        "min_bytes": 0, "max_bytes": 1 << 20, "session_id": 0, "session_epoch": -1,
        "topics": [{"topic": name, "topic_id": topic_id, "partitions": parts} for name, topic_id in topics],
    }  # fmt: skip


_RESOURCES: Final = [
    {"resource_type": 2, "resource_name": "$t", "configuration_keys": ["retention.ms"]},
    {"resource_type": 2, "resource_name": "$u", "configuration_keys": ["retention.ms"]},
    {"resource_type": 2, "resource_name": "$w", "configuration_keys": ["retention.ms"]},
    {"resource_type": 32, "resource_name": "$g", "configuration_keys": ["consumer.session.timeout.ms"]},
    {"resource_type": 4, "resource_name": "", "configuration_keys": ["message.max.bytes"]},
    {"resource_type": 16, "resource_name": "$g", "configuration_keys": ["metrics"]},
]
_CHANGES: Final = [
    {"resource_type": kind, "resource_name": name, "configs": [{"name": key, "value": value}]}
    for kind, name, key, value in (
        (2, "$t", "retention.ms", "1000"),
        (2, "$u", "retention.ms", "1000"),
        (2, "$w", "retention.ms", "1000"),
        (32, "$g", "consumer.session.timeout.ms", "50000"),
        (4, "", "message.max.bytes", "1000000"),
        (16, "$g", "metrics", ""),
    )
]
_FILTER: Final = {
    "resource_type_filter": 2, "resource_name_filter": "none such", "pattern_type_filter": 3, "principal_filter": None,
    "host_filter": None, "operation": 1, "permission_type": 1,
}  # fmt: skip
_MEMBER: Final = {"group_id": "$g", "member_id": "nobody"}
_OLD_MEMBER: Final = {**_MEMBER, "generation_id": 1}
_TXN: Final = {"transactional_id": "$g", "producer_id": 1, "producer_epoch": 0}
_OLD_TXN: Final = {f"v3_and_below_{name}": value for name, value in _TXN.items()}
_OFFSETS: Final = {"committed_offset": 0, "committed_leader_epoch": -1, "committed_metadata": ""}
_NEW_SHARER: Final = {"group_id": "$g", "member_id": "nobody", "member_epoch": 0}
_SHARED: Final = [
    {"topic_id": f"${id}", "partitions": [{"partition_index": 7, "acknowledgement_batches": []}]}
    for id in ("t_id", "w_id")
]

REQUESTS: Final[tuple[tuple[str, Mapping[str, Any]], ...]] = (
    ("produce", _produced()),
    ("produce", _produced("$g", attributes=0x10)),
    ("fetch", _fetched()),
    ("fetch", _fetched(replica_id=7)),
    ("list_offsets", {"replica_id": -1, "topics": _parts(timestamp=-2, current_leader_epoch=-1)}),
    ("metadata", {"topics": _topics(), "include_topic_authorized_operations": True,
                  "include_cluster_authorized_operations": True}),
    ("metadata", {"topics": None, "include_topic_authorized_operations": True}),
    ("metadata", {"topics": []}),
    ("offset_commit", {"group_id": "$g", "generation_id_or_member_epoch": -1, "member_id": "",
                       "topics": _identified(_parts(**_OFFSETS))}),
    ("offset_fetch", {"group_id": "$g", "topics": _indexes("partition_indexes"),
                      "groups": [{"group_id": group, "member_epoch": -1,
                                  "topics": _identified(_indexes("partition_indexes"))}
                                 for group in ("$g", "$h", "$u")]}),
    ("offset_fetch", {"group_id": "$g", "topics": None,
                      "groups": [{"group_id": "$g", "member_epoch": -1, "topics": None}]}),

    *(("find_coordinator", {"key": "$g", "key_type": kind, "coordinator_keys": ["$g", "$h"]}) for kind in range(3)),
    ("join_group", {**_MEMBER, "session_timeout": 1, "rebalance_timeout": 1, "protocol_type": "consumer",
                    "protocols": [{"name": "range", "metadata": b""}]}),
    ("heartbeat", _OLD_MEMBER),
    ("leave_group", {**_MEMBER, "members": [{"member_id": "nobody"}]}),
    ("sync_group", {**_OLD_MEMBER, "protocol_type": "consumer", "protocol_name": "range"}),
    ("sync_group", _OLD_MEMBER),
    ("describe_groups", {"groups": ["$g", "$h"], "include_authorized_operations": True}),
    ("list_groups", {}),
    ("create_topics", {"validate_only": True, "timeout": 5000, "topics": [
        {"name": f"${word}", "num_partitions": 1, "replication_factor": 1} for word in "tuwh"]}),
    ("delete_topics", {"timeout": 5000, "topic_names": ["$u", "$h"], "topics": [{"name": "$u"}, {"name": "$h"}]}),
    ("delete_topics", {"timeout": 5000, "topic_names": [], "topics": [{"topic_id": "$no_id"}]}),
    ("delete_records", {"timeout": 5000, "topics": _parts(offset=0)}),
    ("init_producer_id", {"transactional_id": None, "transaction_timeout": 1000, "producer_id": -1,
                          "producer_epoch": -1}),
    ("init_producer_id", {"transactional_id": "$g", "transaction_timeout": 0, "producer_id": -1,
                          "producer_epoch": -1}),
    ("offset_for_leader_epoch", {"replica_id": -1, "topics": [
        {"topic": f"${word}", "partitions": [{"partition": 0, "current_leader_epoch": -1, "leader_epoch": 0}]}
        for word in "tuwh"]}),
    ("add_partitions_to_txn", {**_OLD_TXN, "v3_and_below_topics": _indexes(),
                               "transactions": [{**_TXN, "verify_only": False, "topics": _indexes()}]}),
    ("add_partitions_to_txn", {**_OLD_TXN, "v3_and_below_topics": _indexes()[:1],
                               "transactions": [{**_TXN, "verify_only": True, "topics": _indexes()[:1]}]}),
    ("add_offsets_to_txn", {**_TXN, "group_id": "$g"}),
    ("end_txn", {**_TXN, "committed": True}),
    ("write_txn_markers", {"markers": [{"producer_id": 1, "producer_epoch": 0, "transaction_result": False,
                                        "topics": [{"name": "$u", "partition_indexes": [0]}],
                                        "coordinator_epoch": 0}]}),
    ("txn_offset_commit", {**_TXN, "group_id": "$g", "generation_id": -1, "member_id": "",
                           "topics": _identified(_parts(**_OFFSETS))}),
    ("describe_configs", {"resources": _RESOURCES, "include_synonyms": False}),
    ("alter_configs", {"resources": _CHANGES, "validate_only": True}),
    ("incremental_alter_configs", {"resources": _CHANGES, "validate_only": True}),
    ("alter_replica_log_dirs", {"dirs": [{"path": "/none/such", "topics": _indexes()}]}),
    ("describe_log_dirs", {"topics": [{"topic": "$t", "partitions": [0]}]}),
    ("create_partitions", {"topics": _topics(count=1, assignments=None), "timeout": 5000, "validate_only": True}),
    ("delete_groups", {"groups_names": ["$u", "$h"]}),
    ("elect_leaders", {"election_type": 0, "timeout": 5000, "topic_partitions": _indexes(name="topic")}),
    ("alter_partition_reassignments", {"timeout": 5000, "topics": [
        {"name": "$u", "partitions": [{"partition_index": 0, "replicas": [1]}]}]}),
    ("list_partition_reassignments", {"timeout": 5000, "topics": [{"name": "$t", "partition_indexes": [0]}]}),
    ("offset_delete", {"group_id": "$g", "topics": [
        {"name": f"${word}", "partitions": [{"partition_index": 5}]} for word in "tuwh"]}),
    ("describe_client_quotas", {"components": [{"entity_type": "user", "match_type": 0, "match": "nobody"}],
                                "strict": False}),
    ("alter_client_quotas", {"entries": [{"entity": [{"entity_type": "user", "entity_name": "nobody"}],
                                          "ops": [{"key": "consumer_byte_rate", "value": 1e6, "remove": False}]}],
                             "validate_only": True}),
    ("describe_user_scram_credentials", {"users": [{"name": "nobody"}]}),
    ("alter_user_scram_credentials", {"deletions": [{"name": "nobody", "mechanism": 1}]}),
    ("describe_quorum", {"topics": [{"topic_name": "none", "partitions": [{"partition_index": 0}]}]}),
    ("describe_cluster", {"include_cluster_authorized_operations": True, "endpoint_type": 1}),
    ("describe_producers", {"topics": _indexes("partition_indexes")}),
    ("describe_transactions", {"transactional_ids": ["$g", "$h"]}),
    ("list_transactions", {"duration_filter": -1}),
    ("consumer_group_heartbeat", {"group_id": "$g", "member_id": "nobody", "member_epoch": 0, "rebalance_timeout": -1,
                                  "topic_partitions": [], "subscribed_topic_names": ["$t"]}),
    ("consumer_group_heartbeat", {"group_id": "$g", "member_id": "nobody", "member_epoch": 0, "rebalance_timeout": -1,
                                  "topic_partitions": [], "subscribed_topic_names": ["$t", "$w"]}),
    ("consumer_group_describe", {"group_ids": ["$g", "$h"], "include_authorized_operations": True}),
    ("share_group_heartbeat", {**_NEW_SHARER, "subscribed_topic_names": ["$t"]}),
    ("share_group_heartbeat", {**_NEW_SHARER, "subscribed_topic_names": ["$t", "$w"]}),
    ("share_group_describe", {"group_ids": ["$g", "$h"], "include_authorized_operations": True}),
    ("share_fetch", {"group_id": "$g", "member_id": "nobody", "share_session_epoch": 0, "max_wait": 0, "min_bytes": 0,
                     "max_bytes": 1, "max_records": 1, "batch_size": 1, "topics": _SHARED,
                     "forgotten_topics_data": []}),
    ("share_acknowledge", {"group_id": "$g", "member_id": "nobody", "share_session_epoch": 1, "topics": _SHARED}),
    ("describe_share_group_offsets", {"groups": [{"group_id": group, "topics": [
        {"topic_name": f"${word}", "partitions": [0]} for word in "tuwh"]} for group in ("$g", "$h", "$u")]}),
    ("describe_share_group_offsets", {"groups": [{"group_id": "$g", "topics": None}]}),
    ("alter_share_group_offsets", {"group_id": "$g", "topics": [
        {"topic_name": f"${word}", "partitions": [{"partition_index": 7, "start_offset": 0}]} for word in "tuwh"]}),
    ("delete_share_group_offsets", {"group_id": "$g", "topics": [{"topic_name": f"${word}"} for word in "tuwh"]}),
    ("list_config_resources", {"resource_types": [2]}),
    ("get_telemetry_subscriptions", {"client_instance_id": None}),
    ("push_telemetry", {"client_instance_id": None}),
    ("describe_acls", _FILTER),
    ("create_acls", {"creations": [{"resource_type": 2, "resource_name": "", "resource_pattern_type": 3,
                                    "principal": "User:a", "host": "*", "operation": 3, "permission_type": 3}]}),
    ("delete_acls", {"filters": [_FILTER]}),
    ("describe_topic_partitions", {"topics": _topics(), "response_partition_limit": 100}),
)  # fmt: skip

_NULL_SINCE: Final = {"metadata": 1, "offset_fetch": 2}
"""The first versions whose topics may be null."""


def versions_of(api: str, body: Mapping[str, Any]) -> Sequence[int]:
    """All versions that can say what a request of `REQUESTS` says."""
    asks_for_all = "topics" in body and body["topics"] is None
    return [version for version in supported(api) if not asks_for_all or version >= _NULL_SINCE[api]]
