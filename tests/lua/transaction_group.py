"""A group whose offsets transactions hold."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import redis

from tests.lua.group import RETENTION_S, Group, plain

PRODUCER = (7, 0)
FIRST = 4_000_000_000_000_000
"""A real ordinal: the time of the tests in microseconds."""


def position(offset: int) -> str:
    return f"{offset} -1 {'a' * 32} "


class TransactionGroup(Group):
    """A group with its key for transactions."""

    def __init__(self, server: redis.Redis, set_clock: Callable[[float], None], name: str = "g") -> None:
        super().__init__(server, set_clock, name)
        self.pending = self.attached.replace(":attached", ":pending")
        self.beside = (self.attached, self.pending)

    def hold(
        self,
        offsets: dict[str, int],
        ordinal: int = FIRST,
        *,
        producer: tuple[int, int] = PRODUCER,
        member: str = "",
        instance: str = "",
        generation: int = -1,
        transactional_id: str = "app",
    ) -> int:
        flat = [part for partition, offset in offsets.items() for part in (partition, position(offset))]
        head = (self.id, self.locator, member, instance, generation, round(RETENTION_S * 1000))
        return int(self.call("txn_commit", *head, *producer, ordinal, transactional_id, *flat, keys=self.beside))

    def end(self, outcome: str = "commit", ordinal: int = FIRST, producer_id: int = PRODUCER[0]) -> int:
        keys = (*self.keys, *self.beside)
        reply: Any = self.server.fcall("korvet_group_txn_end", len(keys), *keys, producer_id, ordinal, outcome)
        code, self.released, self.more = reply[0], [plain(value) for value in reply[1]], bool(reply[2:])
        return int(code)

    def committed(self, *partitions: str) -> dict[str, str]:
        """Offsets for a reader that ignores open transactions; '' if there is none."""
        return {name: found.partition(" ")[0] for name, found in self.fetch(*partitions).items()}

    def stable_offsets(self, *partitions: str) -> dict[str, str]:
        """Offsets for a reader that requires stable ones."""
        flat = [plain(value) for value in self.read("fetch", *partitions, keys=(self.pending,))]
        return {name: found.partition(" ")[0] for name, found in zip(flat[::2], flat[1::2], strict=True)}

    def delete_offsets(self, *partitions: str) -> tuple[int, list[int]]:
        code, codes = self.call("offset_delete", *partitions, keys=(self.pending,))
        return code, codes

    def all_committed(self) -> dict[str, str]:
        """As `committed` for all partitions, in steps."""
        found: dict[str, str] = {}
        cursor: Any = 0
        while cursor != b"0":
            cursor, flat = self.server.fcall_ro("korvet_group_offsets", 5, *self.keys, cursor)
            texts = [plain(text) for text in flat]
            found |= {name: text.partition(" ")[0] for name, text in zip(texts[::2], texts[1::2], strict=True)}
        return found

    def remove(self) -> int:
        return int(self.call("delete", "any", keys=self.beside))

    def dump(self) -> dict[str, bytes]:
        keys: Any = self.server.keys()
        return {key.decode(): self.server.dump(key) or b"" for key in sorted(keys)}
