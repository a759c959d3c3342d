"""Steps that most scripts begin with. Bodies have fields of every version; messages.py leaves out unknown ones."""

import uuid
from collections.abc import Mapping, Sequence
from typing import Any, Final

from tests.oracle.batches import Batch
from tests.oracle.script import Step

NO_SUCH_ID: Final = uuid.UUID("5c7d1e3a-0000-4000-8000-000000000001")
UNKNOWN_TOPIC_ID_FROM: Final = {"produce": 13, "fetch": 13}


def new_topic(name: str = "t", partitions: int = 1, **configs: str) -> tuple[Step, ...]:
    """Create topic `$name` and wait until it serves. Saves `<name>_id`, `<name>_epoch` and `node`."""
    config = [{"name": key.replace("_", "."), "value": value} for key, value in configs.items()]
    topic = {"name": f"${name}", "num_partitions": partitions, "replication_factor": 1, "configs": config}
    return (
        # Each version of Kafka has configs of its own.
        Step("create_topics", version=7, body={"topics": [topic], "timeout": 10000}, errors=None,
             ignore=("topics[].configs",)),
        Step(
            "metadata",
            version=12,
            body={"topics": [{"name": f"${name}"}], "allow_auto_topic_creation": False},
            save={
                f"{name}_id": "topics[0].topic_id",
                f"{name}_epoch": "topics[0].partitions[0].leader_epoch",
                "node": "brokers[0].node_id",
            },
            until=("", None),
        ),
        Step("list_offsets", version=7, body=offsets_body(name, range(partitions), -1), until=("", None)),
    )  # fmt: skip


def offsets_body(name: str, partitions: Sequence[int], timestamp: Any, epoch: Any = -1) -> dict[str, Any]:
    """A ListOffsets request for partitions of `$name` at one timestamp."""
    asked = [{"partition_index": p, "current_leader_epoch": epoch, "timestamp": timestamp} for p in partitions]
    return {"replica_id": -1, "timeout": 1000, "topics": [{"name": f"${name}", "partitions": asked}]}


def produce_body(
    partitions: Mapping[int, Any], name: str = "$t", topic_id: Any = "$t_id", acks: int = -1
) -> dict[str, Any]:
    """A Produce request: records (batches or bytes) per partition of one topic."""
    data = [{"index": index, "records": records} for index, records in partitions.items()]
    return {"acks": acks, "timeout": 5000, "topic_data": [{"name": name, "topic_id": topic_id, "partition_data": data}]}


def produced(*batches: Batch, name: str = "t", partition: int = 0) -> tuple[Step, ...]:
    """Append batches to a partition of `$name`, with one request for each."""
    return tuple(
        Step("produce", version=9, body=produce_body({partition: [batch]}, f"${name}", f"${name}_id"))
        for batch in batches
    )


def fetch_body(
    partitions: Sequence[Mapping[str, Any]], name: str = "$t", topic_id: Any = "$t_id", **top: Any
) -> dict[str, Any]:
    """A sessionless Fetch request that does not wait; a partition mapping overrides offset 0 of partition 0."""
    asked = [{"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20, **one} for one in partitions]
    topic = {"topic": name, "topic_id": topic_id, "partitions": asked}
    usual = {"replica_id": -1, "max_wait": 0, "min_bytes": 0, "max_bytes": 1 << 20, "session_epoch": -1}
    return {**usual, "topics": [topic], **top}


def committed(*offsets: int, name: str = "t", group: str = "g") -> Step:
    """Commit offsets for partitions 0, 1, … of `$name` as a group without members."""
    partitions = [
        {"partition_index": i, "committed_offset": offset, "committed_metadata": f"at {offset}"}
        for i, offset in enumerate(offsets)
    ]
    body = {
        "group_id": f"${group}", "generation_id_or_member_epoch": -1, "retention_time": -1,
        "topics": [{"name": f"${name}", "partitions": partitions}],
    }  # fmt: skip
    return Step("offset_commit", version=8, body=body)


def config_body(configs: Sequence[Mapping[str, Any]], name: str = "$t", kind: int = 2, **top: Any) -> dict[str, Any]:
    """An (Incremental)AlterConfigs request for one resource; type 2 is a topic, 4 a broker."""
    return {"resources": [{"resource_type": kind, "resource_name": name, "configs": list(configs)}], **top}


def described_configs(*keys: str, name: str = "t") -> Step:
    """Describe configs of `$name`, repeated until the broker has seen the change before it."""
    resource = {"resource_type": 2, "resource_name": f"${name}", "configuration_keys": list(keys)}
    return Step("describe_configs", {"resources": [resource]})
