"""Snapshots: what Redis knows of the tier, as immutable objects for readers without Redis. Pure functions over bytes.

A partition's snapshot has its manifest and the facts of its log, a namespace's has its tiered topics. Both are a line
with kind and version, a line of JSON, lines of members, and a line with the checksum of all that. docs/segments.md
describes them; `korvet.tier.series` finds the newest one.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from crc32c import crc32c

from korvet.errors import KorvetError
from korvet.tier.manifest import DamagedManifest, Manifest, Member, folder_of, in_path, listed_line

MOST_BYTES: Final = 64 << 20
"""Of one snapshot: 1024 members take 0.2 MiB, and 10,000 topics some 5 MiB."""
_PARTITION: Final = b"korvet partition 1\n"
_TOPICS: Final = b"korvet topics 1\n"


class DamagedSnapshot(KorvetError):
    """An object is not the snapshot that was written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A partition. All offsets from the log start to ``tier_end`` are in its members, if there are any."""

    cluster_id: str
    namespace: str
    topic: str
    topic_id: str
    """32 hexadecimal digits."""
    partition: int
    token: str
    """The name of the list of segments in Redis, made with the first segment."""
    leader_epoch: int
    epochs: str
    """``epoch:first offset,…``, oldest first."""
    log_start: int
    tier_end: int
    """The offset after the last segment."""
    max_producer_id: int
    """The last footer's: of all batches that were ever sealed."""
    chain: int
    """The last footer's."""
    members: Sequence[Member]
    """Also those wholly below the log start, whose objects are still to be deleted."""

    @property
    def folder(self) -> str:
        """The path of its objects."""
        return folder_of(self.namespace, self.topic, self.topic_id, self.partition)

    def encoded(self) -> Sequence[bytes]:
        """The parts of its object, for `Objects.put`."""
        facts = {name: getattr(self, name) for name in _FACTS}
        return _encoded(_PARTITION, facts, (f"{one.next_offset} {one.text()}" for one in self.members))

    @classmethod
    def decoded(cls, data: bytes | memoryview) -> Snapshot:
        """:raises DamagedSnapshot:"""
        facts, lines = _decoded(_PARTITION, data)
        try:
            members = Manifest(listed_line(line) for line in lines).members
            found = cls(members=members, **{name: kind(facts[name]) for name, kind in _FACTS.items()})
        except (KeyError, TypeError, ValueError, DamagedManifest) as error:
            raise DamagedSnapshot(f"a partition's snapshot is not one of korvet's: {error}") from None
        if problem := found.problem():
            raise DamagedSnapshot(f"the snapshot of {found.topic}-{found.partition} {problem}")
        return found

    def problem(self) -> str | None:
        """Why these facts cannot be those of one moment; None if they can."""
        reached = self.log_start
        for one in self.readable():
            if one.first_offset > reached:
                return f"has no segment from offset {reached} to {one.first_offset}"
            reached = one.next_offset
        if reached < self.tier_end or (self.members and self.members[-1].next_offset > self.tier_end):
            return f"has segments up to {reached}, and the tier ends at {self.tier_end}"
        return None

    def readable(self) -> Sequence[Member]:
        """The members with offsets from the log start on."""
        return [one for one in self.members if one.next_offset > self.log_start]

    def is_ahead_of(self, other: Snapshot) -> bool:
        """True if Redis, where ``other`` was read just now, has lost what this published snapshot knows.

        Lists of segments with different tokens are of two histories. In one history nothing of these ever goes back,
        and merges and shelves only take segments away.
        """
        start = max(self.log_start, other.log_start)
        return (
            self.token != other.token
            or any(getattr(self, name) > getattr(other, name) for name in ("leader_epoch", "log_start", "tier_end"))
            or (self.tier_end == other.tier_end and self.segments_above(start) < other.segments_above(start))
        )

    def segments_above(self, offset: int) -> int:
        """The number of members that end above an offset."""
        return sum(one.next_offset > offset for one in self.members)


_FACTS: Final[Mapping[str, type]] = {
    "cluster_id": str, "namespace": str, "topic": str, "topic_id": str, "partition": int, "token": str,
    "leader_epoch": int, "epochs": str, "log_start": int, "tier_end": int, "max_producer_id": int, "chain": int,
}  # fmt: skip


class TieredTopic(NamedTuple):
    """A topic with ``remote.storage.enable``; ``configs`` are its own."""

    name: str
    id: str
    """32 hexadecimal digits."""
    partitions: int
    configs: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Topics:
    """The tiered topics of a namespace. One that is being deleted is not among them."""

    cluster_id: str
    namespace: str
    version: int
    """The catalog's, which grows with each change; its first one is a time."""
    topics: Sequence[TieredTopic]

    @property
    def folder(self) -> str:
        """The path of its objects. A topic called `topics` has only folders there."""
        return topics_folder(self.namespace)

    def named(self, name: str) -> TieredTopic | None:
        """The topic of a name."""
        return next((one for one in self.topics if one.name == name), None)

    def encoded(self) -> Sequence[bytes]:
        """The parts of its object, for `Objects.put`."""
        facts = {"cluster_id": self.cluster_id, "namespace": self.namespace, "version": self.version}
        lines = (json.dumps(one._asdict() | {"configs": dict(one.configs)}) for one in self.topics)
        return _encoded(_TOPICS, facts, lines)

    @classmethod
    def decoded(cls, data: bytes | memoryview) -> Topics:
        """:raises DamagedSnapshot:"""
        facts, lines = _decoded(_TOPICS, data)
        try:
            return cls(
                cluster_id=str(facts["cluster_id"]),
                namespace=str(facts["namespace"]),
                version=int(facts["version"]),
                topics=[_topic_of(json.loads(line)) for line in lines],
            )
        except (KeyError, TypeError, ValueError) as error:
            raise DamagedSnapshot(f"a snapshot of topics is not one of korvet's: {error}") from None


def topics_folder(namespace: str) -> str:
    """As `Topics.folder`."""
    return f"{in_path(namespace)}/topics"


def _topic_of(fields: Mapping[str, Any]) -> TieredTopic:
    configs = {str(name): str(value) for name, value in dict(fields["configs"]).items()}
    return TieredTopic(str(fields["name"]), str(fields["id"]), int(fields["partitions"]), configs)


def _encoded(kind: bytes, facts: Mapping[str, Any], lines: Iterable[str]) -> Sequence[bytes]:
    text = kind + "".join(f"{line}\n" for line in (json.dumps(facts), *lines)).encode()
    return text, b"%d\n" % crc32c(text)


def _decoded(kind: bytes, data: bytes | memoryview) -> tuple[Mapping[str, Any], Sequence[str]]:
    text, _, crc = bytes(data).removesuffix(b"\n").rpartition(b"\n")
    if not text.startswith(kind) or crc != b"%d" % crc32c(text + b"\n"):
        raise DamagedSnapshot(f"no {kind.decode().strip()!r}, or it was changed or cut off")
    try:
        facts, *lines = text[len(kind) :].decode().split("\n")
        return json.loads(facts), lines
    except ValueError:
        raise DamagedSnapshot(f"the facts of a {kind.decode().strip()!r} are not JSON") from None
