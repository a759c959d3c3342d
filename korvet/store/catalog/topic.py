"""A topic of the catalog, and its JSON text in Redis."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple
from uuid import UUID

from korvet.errors import StoreError


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """A topic; ``configs`` are its own, as set. Clients do not see a deleting one."""

    name: str
    id: UUID
    partitions: int
    configs: Mapping[str, str]
    deleting: bool = False


class TopicEntry(NamedTuple):
    """A topic with its stored text; ``digest`` covers what consumers see, and is 0 during deletion."""

    text: bytes
    topic: Topic
    digest: int


def topic_entry(name: bytes, text: bytes) -> TopicEntry:
    """Read a topic's entry.

    :raises StoreError: if it is not what the contract says.
    """
    topic = parse_topic(name, text)
    seen = f"{topic.name} {topic.id.hex} {topic.partitions}".encode()
    digest = 0 if topic.deleting else int.from_bytes(hashlib.blake2b(seen, digest_size=8).digest())
    return TopicEntry(text, topic, digest)


def parse_topic(name: bytes, text: bytes) -> Topic:
    """A topic from the catalog's JSON.

    :raises StoreError: if it is not what the contract says.
    """
    try:
        values: dict[str, Any] = json.loads(text)
        return Topic(
            name=name.decode(),
            id=UUID(hex=values["id"]),
            partitions=int(values["partitions"]),
            # Lua writes an empty table as an array or an object.
            configs=MappingProxyType(dict(values.get("configs") or {})),
            deleting=bool(values.get("deleting")),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise StoreError(f"the catalog's entry of topic {name!r} is corrupt: {error!r}") from error


def unified_names(names: Iterable[str]) -> Mapping[str, Sequence[str]]:
    """Topic names by their names in metrics, with '_' for every '.'."""
    unified: dict[str, list[str]] = {}
    for name in names:
        unified.setdefault(name.replace(".", "_"), []).append(name)
    return unified
