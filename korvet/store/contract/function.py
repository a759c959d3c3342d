"""What the contract says of one function."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Function:
    """One function: ``keys`` and ``args`` by name and in order, ``reply`` as its header's Returns says it.

    ``read_only`` is the flag no-writes; ``allow_oom`` lets it run at maxmemory (with no-writes Redis ignores maxmemory
    only since 7.0.1, so the reading ones carry it too); ``allow_stale`` lets it run on a replica without its primary.
    """

    name: str
    description: str
    keys: tuple[str, ...]
    args: tuple[str, ...]
    reply: str
    read_only: bool = False
    allow_oom: bool = False
    allow_stale: bool = False

    @property
    def flags(self) -> frozenset[str]:
        """The flags as FUNCTION LIST shows them."""
        flags = {"no-writes": self.read_only, "allow-oom": self.allow_oom, "allow-stale": self.allow_stale}
        return frozenset(flag for flag, is_set in flags.items() if is_set)
