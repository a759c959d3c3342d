"""The archived ends of partitions, as retention counts them.

A committed offset counts up to the end of its leader epoch in the log as it is now. It counts for nothing without an
epoch, or with one that the log does not know. Source: korvet.store.groups.archived
"""

from __future__ import annotations

from collections.abc import Mapping

from kio.schema.errors import ErrorCode

from korvet.cli.kafka.client import Client, retried
from korvet.cli.kafka.errors import BrokerError, check
from korvet.cli.kafka.offsets import (
    NO_REPLICA,
    Committed,
    TopicPartition,
    ask_leaders,
    by_partition,
    committed_positions,
)

ARCHIVE_GROUP = "korvet.archive"
"""The group whose committed offsets are the ends of the archived records."""


def archived_positions(client: Client) -> dict[TopicPartition, Committed]:
    """The archive's committed offsets that have an epoch, by partition; empty if this client may not see them."""
    try:
        found = committed_positions(client, ARCHIVE_GROUP)
    except BrokerError as error:
        if error.code is ErrorCode.group_authorization_failed:
            return {}
        raise
    return {partition: position for partition, position in found.items() if position.leader_epoch >= 0}


@retried
def archived_ends(client: Client, positions: Mapping[TopicPartition, Committed]) -> dict[TopicPartition, int]:
    """The offsets below which retention takes records for archived; a partition is left out if it takes none."""

    def say(one: TopicPartition) -> dict[str, int]:
        return {"leader_epoch": positions[one].leader_epoch}

    ends = {}
    for answer in ask_leaders(client, positions, say, "offset_for_leader_epoch", 4, replica_id=NO_REPLICA):
        for partition, item in by_partition(answer.topics):
            check(item.error_code, f"leader epochs of {partition}")
            if item.leader_epoch == positions[partition].leader_epoch:
                ends[partition] = min(positions[partition].offset, int(item.end_offset))
    return ends
