"""The APIs that korvet implements, each with the versions that Kafka 4.1.2 serves: these the oracle compares."""

from typing import Final

API_KEYS: Final = {
    "produce": 0, "fetch": 1, "list_offsets": 2, "metadata": 3, "offset_commit": 8, "offset_fetch": 9,
    "find_coordinator": 10, "join_group": 11, "heartbeat": 12, "leave_group": 13, "sync_group": 14,
    "describe_groups": 15, "list_groups": 16, "api_versions": 18, "create_topics": 19, "delete_topics": 20,
    "delete_records": 21, "init_producer_id": 22, "offset_for_leader_epoch": 23, "describe_configs": 32,
    "alter_configs": 33, "describe_log_dirs": 35, "create_partitions": 37, "delete_groups": 42,
    "incremental_alter_configs": 44, "offset_delete": 47, "describe_cluster": 60, "describe_topic_partitions": 75,
    "add_partitions_to_txn": 24, "add_offsets_to_txn": 25, "end_txn": 26, "txn_offset_commit": 28,
    "describe_producers": 61, "describe_transactions": 65, "list_transactions": 66,
    "write_txn_markers": 27, "consumer_group_heartbeat": 68, "consumer_group_describe": 69,
    "list_config_resources": 74, "alter_replica_log_dirs": 34, "elect_leaders": 43,
    "alter_partition_reassignments": 45, "list_partition_reassignments": 46, "describe_client_quotas": 48,
    "alter_client_quotas": 49,
    "describe_user_scram_credentials": 50, "describe_quorum": 55, "describe_acls": 29, "create_acls": 30,
    "delete_acls": 31, "alter_user_scram_credentials": 51, "sasl_handshake": 17, "sasl_authenticate": 36,
    "get_telemetry_subscriptions": 71, "push_telemetry": 72,
}  # fmt: skip

# Produce and SaslHandshake are advertised from 0, because librdkafka looks for that. As in Kafka, 0 to 2 of Produce
# have no schema any more. SaslHandshake 0 is refused.
ADVERTISED: Final = {
    "produce": (0, 13), "fetch": (4, 18), "list_offsets": (1, 10), "metadata": (0, 13), "offset_commit": (2, 9),
    "offset_fetch": (1, 9), "find_coordinator": (0, 6), "join_group": (0, 9), "heartbeat": (0, 4),
    "leave_group": (0, 5), "sync_group": (0, 5), "describe_groups": (0, 6), "list_groups": (0, 5),
    "api_versions": (0, 4), "create_topics": (2, 7), "delete_topics": (1, 6), "delete_records": (0, 2),
    "init_producer_id": (0, 5), "offset_for_leader_epoch": (2, 4), "describe_configs": (1, 4),
    "alter_configs": (0, 2), "describe_log_dirs": (1, 4), "create_partitions": (0, 3), "delete_groups": (0, 2),
    "incremental_alter_configs": (0, 1), "offset_delete": (0, 0), "describe_cluster": (0, 2),
    "describe_topic_partitions": (0, 0), "add_partitions_to_txn": (0, 5), "add_offsets_to_txn": (0, 4),
    "end_txn": (0, 5), "txn_offset_commit": (0, 5), "describe_producers": (0, 0), "describe_transactions": (0, 0),
    "list_transactions": (0, 2), "write_txn_markers": (1, 1),
    "consumer_group_heartbeat": (0, 1), "consumer_group_describe": (0, 1),
    "list_config_resources": (0, 1), "alter_replica_log_dirs": (1, 2), "elect_leaders": (0, 2),
    "alter_partition_reassignments": (0, 1), "list_partition_reassignments": (0, 0),
    "describe_client_quotas": (0, 1), "alter_client_quotas": (0, 1),
    "describe_user_scram_credentials": (0, 0), "describe_quorum": (0, 2),
    "describe_acls": (1, 3), "create_acls": (1, 3), "delete_acls": (1, 3),
    "alter_user_scram_credentials": (0, 0), "sasl_handshake": (0, 1), "sasl_authenticate": (0, 2),
    "get_telemetry_subscriptions": (0, 0), "push_telemetry": (0, 0),
}  # fmt: skip

TOLD_TO_A_RECEIVER: Final = ("get_telemetry_subscriptions", "push_telemetry")
"""Both brokers serve these always, and advertise them only if metrics that clients push go somewhere."""


_SERVED_SINCE: Final = {"produce": 3, "sasl_handshake": 1}


def supported(api: str) -> range:
    """The versions of an API that work, lowest first."""
    low, high = ADVERTISED[api]
    return range(_SERVED_SINCE.get(api, low), high + 1)
