"""Topics and offsets as a broker reports them."""

from __future__ import annotations

from dataclasses import dataclass

Partition = tuple[str, int]
"""A topic's name and a partition's number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """A topic as the broker knows it now. A deleted topic of the same name had another ``id``."""

    name: str
    id: str
    partitions: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """An offset and its leader epoch; the epoch is None if the broker knows none.

    ``metadata`` is the text that was committed with it. Other text may follow it unless this client committed it.
    """

    offset: int
    leader_epoch: int | None
    metadata: str = ""
