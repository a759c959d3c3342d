"""The number of partitions and the brokers for them that a client may request: a partition has one replica.

Source: ReplicationControlManager.createTopic and validateManualPartitionAssignment.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from kio.schema.errors import ErrorCode

from korvet.wire import requests

Problem = tuple[ErrorCode, str]


def count_problem(partitions: int, replicas: int) -> Problem | None:
    """The reason why a topic cannot have so many partitions or replicas, or None; -1 is the cluster's default."""
    if replicas < -1 or replicas == 0:
        return (
            ErrorCode.invalid_replication_factor,
            "Replication factor must be larger than 0, or -1 to use the default value.",
        )
    if partitions < -1 or partitions == 0:
        return ErrorCode.invalid_partitions, "Number of partitions was set to an invalid non-positive value."
    if replicas > 1:
        return (
            ErrorCode.invalid_replication_factor,
            f"Unable to replicate the partition {replicas} time(s): The target replication factor of {replicas} "
            "cannot be reached because only 1 broker(s) are registered.",
        )
    return None


def manual_problem(requested: requests.CreatableTopic, node_ids: Collection[int]) -> Problem | None:
    """The reason why a new topic's assignments (CreatableTopic) cannot be followed, or None."""
    if requested.replication_factor != -1:
        return (
            ErrorCode.invalid_request,
            "A manual partition assignment was specified, but replication factor was not set to -1.",
        )
    if requested.num_partitions != -1:
        return (
            ErrorCode.invalid_request,
            "A manual partition assignment was specified, but numPartitions was not set to -1.",
        )
    seen: set[int] = set()
    for assignment in requested.assignments:
        if assignment.partition_index in seen:
            return (
                ErrorCode.invalid_replica_assignment,
                f"Found multiple manual partition assignments for partition {assignment.partition_index}",
            )
        seen.add(assignment.partition_index)
        problem = replicas_problem(assignment.broker_ids, node_ids)
        if problem is not None:
            return problem
    if seen != set(range(len(seen))):
        return (
            ErrorCode.invalid_replica_assignment,
            "partitions should be a consecutive 0-based integer sequence",
        )
    return None


def replicas_problem(broker_ids: Sequence[int], node_ids: Collection[int]) -> Problem | None:
    """The reason why a partition cannot lie on these brokers, or None; its one replica may lie on any broker."""
    if not broker_ids:
        return (
            ErrorCode.invalid_replica_assignment,
            "The manual partition assignment includes an empty replica list.",
        )
    ordered = sorted(broker_ids)
    for position, broker_id in enumerate(ordered):
        if broker_id not in node_ids:
            return (
                ErrorCode.invalid_replica_assignment,
                f"The manual partition assignment includes broker {broker_id}, but no such broker is registered.",
            )
        if position > 0 and ordered[position - 1] == broker_id:
            return (
                ErrorCode.invalid_replica_assignment,
                f"The manual partition assignment includes the broker {broker_id} more than once.",
            )
    if len(ordered) > 1:
        return (
            ErrorCode.invalid_replica_assignment,
            f"The manual partition assignment includes {len(ordered)} brokers, but partitions have one replica here.",
        )
    return None
