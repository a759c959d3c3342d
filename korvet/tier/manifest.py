"""The manifest of a partition: which objects hold its sealed offsets. Pure functions; Redis keeps the members.

A zset holds one member for each segment, scored by the offset after it. Members follow each other without a gap. The
oldest ones of many are *shelved*: one object lists them, and one member stands for all. So the zset has at most
`MOST_MEMBERS`, and a member about 150 bytes.

A member is a text of words, the same for both kinds:

    kind first_offset size_bytes footer_bytes max_timestamp running_bytes max_producer_id chain crc name

Source: KIP-405's RemoteLogSegmentMetadata
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise
from typing import Final, NamedTuple
from uuid import UUID

from crc32c import crc32c

from korvet.errors import KorvetError
from korvet.tier.segment import Footer

MOST_MEMBERS: Final = 1024
SHELVED: Final = 512
"""The segments of a shelf. With 64 MiB each, a partition's 1024 members then stand for 16 TiB."""
_GROWTH: Final = 8
"""A merge makes that much of its largest segment, so a byte is written again once for each power of eight."""
_LEAST_MERGED: Final = 2
_MOST_MERGED: Final = 64
_SHELF: Final = b"korvet shelf 1\n"
_KINDS: Final = ("segment", "shelf")
_NAME_LENGTH: Final = 26
_NAME_CHARACTERS: Final = frozenset("0123456789ABCDEFGHJKMNPQRSTVWXYZ")
_LARGEST: Final = (1 << 63) - 1


class DamagedManifest(KorvetError):
    """A member or a shelf is not one that korvet wrote, or members do not follow each other."""


class Member(NamedTuple):
    """A segment, or a shelf of older ones. Offsets from ``first_offset`` up to but without ``next_offset``."""

    kind: str
    first_offset: int
    next_offset: int
    size_bytes: int
    """The bytes of batches."""
    footer_bytes: int
    """The bytes after the batches; of a shelf, its object."""
    max_timestamp: int
    """The greatest of its own batches, in milliseconds."""
    running_bytes: int
    """The bytes of all batches that the log ever had, up to its end."""
    max_producer_id: int
    chain: int
    """As `korvet.tier.segment.Footer.chain`."""
    crc: int
    """The CRC-32C of the footer, or of the shelf."""
    name: str
    """A ULID, which makes the object's name unique."""

    @property
    def object_bytes(self) -> int:
        """The size of the object."""
        return self.footer_bytes if self.kind == "shelf" else self.size_bytes + self.footer_bytes

    def text(self) -> str:
        """The zset's member. Its score is ``next_offset``."""
        return " ".join(str(value) for name, value in zip(self._fields, self, strict=True) if name != "next_offset")

    def path(self, namespace: str, topic: str, topic_id: UUID, partition: int) -> str:
        """The object's path below the prefix of the tier."""
        file = f"{self.first_offset:020d}-{self.name}.{self.kind}"
        return f"{namespace}/{topic}/{topic_id.hex}/{partition}/{file}"


def member_of(footer: Footer, running_bytes: int, name: str) -> Member:
    """The member for a segment that was uploaded."""
    return Member(
        "segment", footer.first_offset, footer.next_offset, footer.size_bytes, footer.footer_bytes,
        footer.max_timestamp, running_bytes, footer.max_producer_id, footer.chain, footer.crc, name,
    )  # fmt: skip


def parse_member(text: str, next_offset: int) -> Member:
    """
    :raises DamagedManifest:
    """
    words = text.split(" ")
    kind, name = words[0], words[-1]
    try:
        first, size, footer, timestamp, running, producer, chain, crc = map(int, words[1:-1])
    except ValueError:
        raise DamagedManifest(f"the member {text[:200]!r} is not one of korvet's") from None
    member = Member(kind, first, next_offset, size, footer, timestamp, running, producer, chain, crc, name)
    is_sound = (
        kind in _KINDS
        and 0 <= first < next_offset <= _LARGEST
        and 0 < size <= running <= _LARGEST
        and footer > 0
        and member.text() == text
        and len(name) == _NAME_LENGTH
        and _NAME_CHARACTERS.issuperset(name)
    )
    if not is_sound:
        raise DamagedManifest(f"the member {text[:200]!r} is not one of korvet's")
    return member


class Manifest:
    """The members of a partition, oldest first.

    :raises DamagedManifest: they do not follow each other.
    """

    def __init__(self, members: Iterable[Member]) -> None:
        self.members: Sequence[Member] = tuple(members)
        for one, after in pairwise(self.members):
            if one.next_offset != after.first_offset:
                raise DamagedManifest(f"after offset {one.next_offset} comes {after.first_offset}")

    @classmethod
    def of_reply(cls, reply: Iterable[tuple[bytes, int]]) -> Manifest:
        """The manifest of the zset's members and scores. The empty member, which each zset has, is none.

        :raises DamagedManifest:
        """
        found = ((text.decode(errors="replace"), int(score)) for text, score in reply if text)
        return cls(parse_member(text, score) for text, score in found)

    def at(self, offset: int) -> Member | None:
        """The member that holds an offset."""
        at = bisect_right(self.members, offset, key=lambda one: one.next_offset)
        found = self.members[at] if at < len(self.members) else None
        return found if found and found.first_offset <= offset else None

    def at_time(self, timestamp: int, offset: int = 0) -> Member | None:
        """The first member that ends above an offset and may have a batch with a timestamp not earlier."""
        at = bisect_right(self.members, offset, key=lambda one: one.next_offset)
        return next((one for one in self.members[at:] if one.max_timestamp >= timestamp), None)

    def below(self, start: int) -> Sequence[Member]:
        """The members wholly below an offset. A shelf that lies across it stays, and with it a list of older segments:
        `Manifest.below` of what it lists names the objects that may go."""
        return self.members[: bisect_right(self.members, start, key=lambda one: one.next_offset)]

    def to_shelve(self) -> Sequence[Member]:
        """The oldest segments, if there are more members than a zset shall have."""
        segments = [one for one in self.members if one.kind == "segment"]
        return segments[:SHELVED] if len(self.members) >= MOST_MEMBERS and len(segments) > SHELVED else ()

    def to_merge(self, target_bytes: int) -> Sequence[Member]:
        """The oldest small neighbours that are worth a merge into one of at most a size. Small is below half of it.

        They are worth it if they make half the size, and so are never merged again, or eight times their largest.
        """
        run: list[Member] = []
        for one in self.members:
            is_small = one.kind == "segment" and 2 * one.size_bytes < target_bytes
            is_full = len(run) == _MOST_MERGED or _size_bytes(run) + one.size_bytes > target_bytes
            if not is_small or is_full:
                if found := _worth_merging(run, target_bytes):
                    return found
                run = []
            if is_small:
                run.append(one)
        return _worth_merging(run, target_bytes)


def _worth_merging(run: Sequence[Member], target_bytes: int) -> Sequence[Member]:
    if len(run) < _LEAST_MERGED:
        return ()
    size_bytes, largest = _size_bytes(run), max(run, key=lambda one: one.size_bytes)
    if 2 * size_bytes >= target_bytes or _GROWTH * largest.size_bytes <= size_bytes:
        return run
    at = run.index(largest)
    return _worth_merging(run[:at], target_bytes) or _worth_merging(run[at + 1 :], target_bytes)


def _size_bytes(run: Iterable[Member]) -> int:
    return sum(one.size_bytes for one in run)


def to_seal(sizes_bytes: Iterable[int], target_bytes: int, *, is_urgent: bool) -> int:
    """The number of batches for the next segment; 0 while too few wait.

    :param sizes_bytes: of the batches from the tier's end to the last stable offset.
    :param is_urgent: true if retention or memory asks for them. Then fewer than ``target_bytes`` suffice.
    """
    count = 0
    for count, size_bytes in enumerate(accumulate(sizes_bytes), 1):
        if size_bytes >= target_bytes:
            return count
    return count if is_urgent else 0


def shelf(members: Sequence[Member], name: str) -> tuple[bytes, Member]:
    """The object that lists segments, and the member that takes their place."""
    lines = [f"{one.next_offset} {one.text()}\n" for one in members]
    data = _SHELF + "".join(lines).encode()
    last = members[-1]
    return data, last._replace(
        kind="shelf",
        first_offset=members[0].first_offset,
        size_bytes=_size_bytes(members),
        footer_bytes=len(data),
        max_timestamp=max(one.max_timestamp for one in members),
        crc=crc32c(data),
        name=name,
    )


def read_shelf(data: bytes | memoryview, member: Member) -> Manifest:
    """The segments of a shelf.

    :raises DamagedManifest: the object is not the one that the member stands for.
    """
    if len(data) != member.footer_bytes or crc32c(data) != member.crc:
        raise DamagedManifest(f"the shelf of offset {member.first_offset} was changed or cut off")
    lines = bytes(data).decode(errors="replace").removeprefix(_SHELF.decode()).splitlines()
    found = Manifest(_listed(line) for line in lines)
    is_whole = (
        found.members
        and found.members[0].first_offset == member.first_offset
        and found.members[-1].next_offset == member.next_offset
        and all(one.kind == "segment" for one in found.members)
    )
    if not is_whole:
        raise DamagedManifest(f"the shelf of offset {member.first_offset} lists other segments")
    return found


def _listed(line: str) -> Member:
    score, _, text = line.partition(" ")
    if not score.isdecimal():
        raise DamagedManifest(f"the line {line[:200]!r} of a shelf is not one of korvet's")
    return parse_member(text, int(score))
