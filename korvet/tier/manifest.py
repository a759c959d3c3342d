"""The manifest of a partition: which objects hold its sealed offsets. Pure functions over what Redis lists.

`lua/2-log/1-tier.lua` keeps the list and writes its texts. The oldest segments of many are *shelved*: one object lists
them, and one member stands for all. So the list has at most `MOST_MEMBERS`.

Source: KIP-405's RemoteLogSegmentMetadata
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Final, NamedTuple
from urllib.parse import quote

from crc32c import crc32c

from korvet.errors import KorvetError
from korvet.tier.segment import MOST_FOOTER_BYTES

MOST_MEMBERS: Final = 1024
SHELVED: Final = 512
"""The segments of a shelf. With 64 MiB each, a partition's 1024 members then stand for 16 TiB."""
_GROWTH: Final = 8
"""A merge makes that much of its largest segment, so a byte is written again once for each power of eight."""
_LEAST_MERGED: Final = 2
_MOST_MERGED: Final = 64
_SHELF: Final = b"korvet shelf 1\n"
_TEXT: Final = re.compile(
    r"(segment|shelf) (\d+) (\d+) (\d+) (-?\d+) (-?\d+) (\d+) (\d+) ([A-Za-z0-9._-]{1,128})", re.ASCII
)
_LARGEST: Final = (1 << 63) - 1


class DamagedManifest(KorvetError):
    """A member or a shelf is not one that korvet wrote, or two overlap."""


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
    """The greatest of its batches, in milliseconds. A batch without timestamps counts from its append."""
    running_max_timestamp: int
    """The greatest of all batches that the log ever had, up to its end."""
    running_bytes: int
    """The bytes of all these batches."""
    crc: int
    """The CRC-32C of the footer, or of the shelf."""
    name: str
    """A text that no other object has, such as a ULID."""

    @property
    def object_bytes(self) -> int:
        """The size of the object."""
        return self.footer_bytes if self.kind == "shelf" else self.size_bytes + self.footer_bytes

    def text(self) -> str:
        """The text by which Redis lists it, beside ``next_offset``."""
        return " ".join(str(value) for name, value in zip(self._fields, self, strict=True) if name != "next_offset")

    def path(self, folder: str) -> str:
        """The object's path."""
        return object_path(folder, self.kind, self.first_offset, self.name)


def folder_of(namespace: str, topic: str, topic_id: str, partition: int) -> str:
    """The path of a partition's objects below the prefix of the tier. ``topic_id`` has 32 hexadecimal digits."""
    return f"{topic_folder(namespace, topic, topic_id)}/{partition}"


def topic_folder(namespace: str, topic: str, topic_id: str) -> str:
    """The path of a topic's objects."""
    return f"{in_path(namespace)}/{in_path(topic)}/{topic_id}"


def in_path(name: str) -> str:
    """A namespace or topic in a path: as in a URL, but with `=` for `%`, and so no dot at the beginning."""
    text = quote(name, safe="").replace("~", "%7E").replace("%", "=")
    return f"=2E{text[1:]}" if text.startswith(".") else text


def object_path(folder: str, kind: str, first_offset: int, name: str) -> str:
    """The path of a segment or shelf."""
    return f"{folder}/{first_offset:020d}-{name}.{kind}"


def parse_member(text: str, next_offset: int) -> Member:
    """
    :raises DamagedManifest:
    """
    if found := _TEXT.fullmatch(text):
        first, size, footer, own_max, running_max, running, crc = map(int, found.groups()[1:-1])
        member = Member(found[1], first, next_offset, size, footer, own_max, running_max, running, crc, found[9])
        is_sound = first < next_offset <= _LARGEST and 0 < size <= _LARGEST and footer > 0 and running <= _LARGEST
        if is_sound and member.text() == text:
            return member
    raise DamagedManifest(f"the segment {text[:200]!r} up to offset {next_offset} is not one of korvet's")


class Manifest:
    """The members of a partition, oldest first. There may be gaps between them, of deleted records.

    :raises DamagedManifest: two overlap.
    """

    def __init__(self, members: Iterable[Member]) -> None:
        self.members: Sequence[Member] = tuple(members)
        for one, after in pairwise(self.members):
            if one.next_offset > after.first_offset:
                raise DamagedManifest(f"the segments up to {one.next_offset} and from {after.first_offset} overlap")

    @classmethod
    def of_listed(cls, listed: Iterable[tuple[int, bytes]]) -> Manifest:
        """The manifest of Redis's texts, each with the offset after it.

        :raises DamagedManifest:
        """
        return cls(parse_member(text.decode(errors="replace"), next_offset) for next_offset, text in listed)

    def extended(self, listed: Iterable[tuple[int, bytes]]) -> Manifest:
        """With the members that Redis lists from the end of this one on. The first of them may have taken the place of
        the last ones here: a merge, or a shelf.

        :raises DamagedManifest:
        """
        later = Manifest.of_listed(listed).members
        at = bisect_left(self.members, later[0].first_offset, key=lambda one: one.first_offset) if later else None
        return Manifest([*self.members[:at], *later])

    def at(self, offset: int) -> Member | None:
        """The member that holds an offset."""
        at = bisect_right(self.members, offset, key=lambda one: one.next_offset)
        found = self.members[at] if at < len(self.members) else None
        return found if found and found.first_offset <= offset else None

    def from_time(self, timestamp: int) -> Sequence[Member]:
        """The members that have a batch with a timestamp not earlier."""
        from_here = self.members[bisect_left(self.members, timestamp, key=lambda one: one.running_max_timestamp) :]
        return [one for one in from_here if one.max_timestamp >= timestamp]

    def below(self, start: int) -> Sequence[Member]:
        """The members wholly below an offset. A shelf that lies across it stays, and with it a list of older segments:
        `Manifest.below` of what it lists names the objects that may go."""
        return self.members[: bisect_right(self.members, start, key=lambda one: one.next_offset)]

    def to_shelve(self) -> Sequence[Member]:
        """The oldest segments of the longest run without a gap, if there are more members than the list shall have."""
        runs: list[list[Member]] = [[]]
        for one in self.members:
            if runs[-1] and runs[-1][-1].next_offset != one.first_offset:
                runs.append([])
            if one.kind == "segment":
                runs[-1].append(one)
        longest = max(runs, key=len)
        return longest[:SHELVED] if len(self.members) >= MOST_MEMBERS and len(longest) > SHELVED else ()

    def to_merge(self, target_bytes: int) -> Sequence[Member]:
        """The oldest small neighbours that are worth a merge into one of at most a size. Small is below half of it.

        They are worth it if they make half the size, and so are never merged again, or eight times their largest.
        """
        run: list[Member] = []
        for one in self.members:
            is_small = one.kind == "segment" and 2 * one.size_bytes < target_bytes
            is_apart = bool(run) and run[-1].next_offset != one.first_offset
            is_full = len(run) == _MOST_MERGED or _size_bytes(run) + one.size_bytes > target_bytes
            # The tables of footers are joined, and those of many aborted transactions are large.
            is_full = is_full or sum(each.footer_bytes for each in (*run, one)) > MOST_FOOTER_BYTES
            if not is_small or is_full or is_apart:
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


def shelf(members: Sequence[Member], name: str) -> tuple[bytes, Member]:
    """The object that lists segments, and the member that takes their place, as `korvet_tier_shelve` writes it."""
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
    found = Manifest(map(listed_line, lines))
    is_whole = (
        found.members
        and found.members[0].first_offset == member.first_offset
        and found.members[-1].next_offset == member.next_offset
        and all(one.kind == "segment" for one in found.members)
    )
    if not is_whole:
        raise DamagedManifest(f"the shelf of offset {member.first_offset} lists other segments")
    return found


def listed_line(line: str) -> Member:
    """The member of a line of a shelf: its next offset, a space, its text.

    :raises DamagedManifest:
    """
    score, _, text = line.partition(" ")
    if not score.isdecimal():
        raise DamagedManifest(f"the line {line[:200]!r} of a shelf is not one of korvet's")
    return parse_member(text, int(score))
