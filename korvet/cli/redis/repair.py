"""The repair of a log with an unreadable next entry: the entry is removed, and readers and appends go on.

It goes straight to Redis, like the command that a front-end's log names.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from korvet.cli.kafka.client import Client
from korvet.cli.kafka.consume import BROKER_FINDS_CORRUPT, Cursor, Reader
from korvet.cli.kafka.offsets import TopicPartition
from korvet.cli.kafka.records import Undecodable
from korvet.cli.redis.connections import Node, call_at, open_nodes, refuse_lone_node
from korvet.errors import KorvetError
from korvet.store.keys import Namespace, placed_batch
from korvet.store.log.state.entries import parsed_entries


class Damage(NamedTuple):
    """A log that brokers find corrupt: its partition, and the offset where they stop."""

    partition: TopicPartition
    offset: int


def corrupt_entry(client: Client, redis_url: str, namespace: Namespace, damage: Damage) -> str:
    """The id of the unreadable entry: the first after the offset where the broker stops.

    Redis must agree, because it may be another cluster's.

    :raises KorvetError: if the broker can go on, or Redis has a readable entry there, or none.
    """
    cursor = Cursor(partition=damage.partition, position=damage.offset, stop=damage.offset + 1)
    found = Reader(client, [cursor], committed=False).read(wait_s=0.0)
    if not any(isinstance(item, Undecodable) and item.reason == BROKER_FINDS_CORRUPT for _, item in found):
        raise KorvetError(f"partition {damage.partition} can be read at offset {damage.offset}")
    log = namespace.partition(*damage.partition).log
    with open_nodes(redis_url) as nodes:
        refuse_lone_node(redis_url, nodes)
        entries = call_at(nodes, "XRANGE", log, f"({damage.offset}-0", "+", "COUNT", "1")
        if not entries:
            raise KorvetError(f"this Redis has no entry of partition {damage.partition} after offset {damage.offset}")
        if not _is_corrupt(nodes, log, entries):
            raise KorvetError(
                f"partition {damage.partition}: the entry in this Redis can be read; is it the same cluster?"
            )
    return str(entries[0][0].decode())


def _is_corrupt(nodes: Sequence[Node], log: str, entries: Sequence[Any]) -> bool:
    """True if an entry of XRANGE's answer is foreign, or its batch is missing or has another size."""
    # This client makes a dictionary of an entry's fields.
    flat = [(id, [part for pair in fields.items() for part in pair]) for id, fields in entries]
    parsed, corrupt = parsed_entries(log, flat)
    if corrupt is not None:
        return True
    (entry,) = parsed
    if entry.record is not None:
        return False
    if entry.data is not None:
        return len(entry.data) != entry.size_bytes
    return bool(call_at(nodes, "STRLEN", placed_batch(log, entry.place)) != entry.size_bytes)


def remove_entry(client: Client, redis_url: str, namespace: Namespace, damage: Damage, entry: str) -> None:
    """Remove an entry, if it is still the one that cannot be read.

    :raises KorvetError: if it is not, or the partition is gone.
    """
    if corrupt_entry(client, redis_url, namespace, damage) != entry:
        raise KorvetError(f"entry {entry} is not the one that cannot be read now; look again")
    keys = namespace.partition(*damage.partition)
    with open_nodes(redis_url) as nodes:
        code, _ = call_at(nodes, "FCALL", "korvet_log_repair", "2", keys.log, keys.meta, entry)
    if code:
        raise KorvetError(f"partition {damage.partition} is gone")
