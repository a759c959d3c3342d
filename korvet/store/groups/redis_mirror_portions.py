"""The work of `korvet.store.groups.redis_mirror` in portions, and the positions of Redis groups."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from korvet.errors import KorvetError
from korvet.store.groups.call import chunks
from korvet.store.groups.types import TopicPartition, name_of

AT_ONCE: Final = 500
"""The most partitions to read, move or destroy together; more would delay other requests."""

_MOST_MIRRORED: Final = 100_000


class Portion(NamedTuple):
    """Some partitions of one group by their names, each with its topic's id in hex."""

    group_id: str
    partitions: Sequence[tuple[str, str]]


class Mirrored:
    """The last known positions of Redis groups: partition -> (topic id, offset), by group. The oldest go first."""

    def __init__(self) -> None:
        self._groups: OrderedDict[str, dict[str, tuple[str, bytes]]] = OrderedDict()
        self._size = 0

    def of(self, group_id: str) -> dict[str, tuple[str, bytes]]:
        return self._groups.get(group_id, {})

    def put(self, group_id: str, partition: str, stands_at: tuple[str, bytes]) -> None:
        partitions = self._groups.setdefault(group_id, {})
        self._groups.move_to_end(group_id)
        self._size += partition not in partitions
        partitions[partition] = stands_at
        while self._size > _MOST_MIRRORED:
            self.forget(next(iter(self._groups)))

    def clear(self) -> None:
        self._groups.clear()
        self._size = 0

    def forget(self, group_id: str) -> None:
        self._size -= len(self._groups.pop(group_id, ()))


def replies(outcomes: list[Any]) -> list[Any]:
    """The replies.

    :raises KorvetError: a call failed.
    """
    for outcome in outcomes:
        if isinstance(outcome, KorvetError):
            raise outcome
    return outcomes


def own(error: BaseException) -> KorvetError:
    """The error that `settled` returned instead of a reply, with its type."""
    assert isinstance(error, KorvetError)
    return error


def portions_of(pending: Mapping[tuple[str, TopicPartition], str]) -> Iterator[list[Portion]]:
    """The pending partitions by groups, in lists of `AT_ONCE` partitions at most."""
    groups: dict[str, list[tuple[str, str]]] = {}
    for (group_id, partition), topic_id in pending.items():
        groups.setdefault(group_id, []).append((name_of(partition), topic_id))
    portions: list[Portion] = []
    size = 0
    for group_id, partitions in groups.items():
        for some in chunks(partitions, AT_ONCE):
            if size + len(some) > AT_ONCE:
                yield portions
                portions, size = [], 0
            portions.append(Portion(group_id, some))
            size += len(some)
    if portions:
        yield portions


def pairs(flat: Sequence[bytes]) -> Iterator[tuple[str, str]]:
    """The partitions and topics' ids of a flat reply."""
    return ((partition.decode(), topic_id.decode()) for partition, topic_id in zip(flat[::2], flat[1::2], strict=True))
