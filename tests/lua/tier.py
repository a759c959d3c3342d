"""A partition with segments, driven as by a front-end that moves batches into a tier."""

from __future__ import annotations

from typing import Any, NamedTuple
from zlib import crc32

import redis

from tests.lua.transaction import TransactionLog

SIZE = 5
"""The bytes of each batch."""


class Upload(NamedTuple):
    """A segment as it was uploaded, with what the log said of its first and last entry then."""

    name: str
    first: int
    next: int
    size: int
    max_timestamp: int
    first_index: str
    last_index: str

    @property
    def text(self) -> bytes:
        """What the list has of it."""
        running_max, running_bytes = self.last_index.split()[3:5]
        words = self.first, self.size, 77, self.max_timestamp, running_max, running_bytes, 99, self.name
        return b"segment " + " ".join(map(str, words)).encode()


class Listed(NamedTuple):
    code: int
    token: bytes
    epoch: int
    start: int
    local_start: int
    tier_end: int
    segments: list[tuple[int, bytes]]
    more: int


class Tiered(TransactionLog):
    """A partition, and its list of segments."""

    def __init__(self, server: redis.Redis, name: str = "{default:t:0}") -> None:
        super().__init__(server, name)
        self.tier = f"korvet:{name}:tier"
        self.named = 0

    @property
    def tier_keys(self) -> tuple[str, ...]:
        return (self.log, self.meta, self.tier, self.aborted)

    def put(self, content: str = "batch", records: int = 10, timestamp: int = 1000) -> int:
        """Append a batch of five bytes, whose checksum says its content. Returns its first offset."""
        data = content.encode().ljust(SIZE)[:SIZE]
        args = (self.topic_id, self.run_id, records, SIZE, timestamp, crc32(content.encode()), -1, -1, -1, data)
        reply: bytes = self.call("korvet_log_append", *args, keys=self.keys[:3])
        return int(reply.split()[1])

    def index_at(self, next_offset: int) -> str:
        """The index of the entry that ends there."""
        found: Any = self.server.xrange(self.log, f"{next_offset}-0", f"{next_offset}-0")
        return found[0][1][b"i"].decode() if found else "1 5 1000 1000 5 1 0 0"

    def upload(self, first: int, next_offset: int) -> Upload:
        """A segment of the entries between two offsets, as the log has them now."""
        self.named += 1
        found: Any = self.server.xrange(self.log, f"{first + 1}-0", f"{next_offset}-0")
        indexes = [fields[b"i"].decode() for _, fields in found] or [self.index_at(next_offset)]
        size = sum(int(index.split()[1]) for index in indexes)
        newest = max(int(index.split()[2]) for index in indexes)
        return Upload(f"{self.named:020d}", first, next_offset, size, newest, indexes[0], indexes[-1])

    def add(self, one: Upload, token: str = "token") -> list[Any]:
        """Code, status, where the next segment begins, number of segments."""
        args = (self.topic_id, token, one.name, one.first, one.next, one.size, 77, 99, *one[4:])
        reply: list[Any] = self.call("korvet_tier_add", *args, keys=self.tier_keys)
        return reply

    def seal(self, first: int, next_offset: int) -> Upload:
        """Upload a segment and add it."""
        one = self.upload(first, next_offset)
        assert self.add(one)[:3] == [0, b"added", next_offset]
        return one

    def drop(self, offset: int, epoch: int = 0) -> list[int]:
        """One local trim: code, local start, more."""
        reply: list[int] = self.call("korvet_tier_trim", self.topic_id, offset, epoch, keys=self.tier_keys)
        return reply

    def listed(self, offset: int = 0, most: int = 512) -> Listed:
        reply: Any = self.server.fcall_ro("korvet_tier_list", 2, self.meta, self.tier, self.topic_id, offset, most)
        *head, flat, more = reply
        return Listed._make((*head, list(zip(flat[::2], flat[1::2], strict=True)), more))

    def kept(self, oldest: int, keep_bytes: int) -> list[int]:
        """Code, leader epoch, and the offset below which whole segments may go."""
        args = (self.topic_id, oldest, keep_bytes)
        reply: Any = self.server.fcall_ro("korvet_tier_kept", 2, self.meta, self.tier, *args)
        return list(reply)

    def shelve(self, texts: list[bytes], name: str = "shelf", kind: str = "shelf") -> list[Any]:
        """Code, status, number of segments."""
        args: list[str | int | bytes] = [self.topic_id, name, kind, 88, 55, *texts]
        reply: list[Any] = self.call("korvet_tier_shelve", *args, keys=self.tier_keys)
        return reply

    def forget(self, texts: list[bytes]) -> list[int]:
        """Code, removed."""
        reply: list[int] = self.call("korvet_tier_forget", self.topic_id, *texts, keys=self.tier_keys)
        return reply

    def saved(self) -> dict[str, bytes]:
        """The partition's keys, to come back to."""
        return {key: value for key, value in self.dump().items() if key.startswith("korvet:")}

    def key_names(self) -> set[str]:
        return set(self.saved())

    def come_back(self, saved: dict[str, bytes]) -> None:
        """Let the server come back as it was then, without its later writes, under another replication id."""
        for key in self.saved():
            self.server.delete(key)
        for key, value in saved.items():
            self.server.restore(key, 0, value)
        self.run_id = f"{int(self.run_id) + 1:040d}"
