"""What `korvet.store.redis_groups` asks for and remembers: places of groups, and how many of them at once."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from korvet.errors import KorvetError

AT_ONCE: Final = 500
"""How many places are asked for, moved or destroyed together; more would hold up other requests."""

_MOST_FOLLOWED: Final = 100_000
T = TypeVar("T")

Place = tuple[str, int]
"""A topic's name and a partition."""


class Unit(NamedTuple):
    """Some places of one group, each with its topic's id in hex."""

    group_id: str
    places: Sequence[tuple[str, str]]


class Followed:
    """Where this front-end saw Redis groups stand: place -> (topic id, offset) of each group. The oldest go first."""

    def __init__(self) -> None:
        self._groups: OrderedDict[str, dict[str, tuple[str, bytes]]] = OrderedDict()
        self._size = 0

    def of(self, group_id: str) -> dict[str, tuple[str, bytes]]:
        return self._groups.get(group_id, {})

    def put(self, group_id: str, place: str, stands_at: tuple[str, bytes]) -> None:
        places = self._groups.setdefault(group_id, {})
        self._groups.move_to_end(group_id)
        self._size += place not in places
        places[place] = stands_at
        while self._size > _MOST_FOLLOWED:
            self.forget(next(iter(self._groups)))

    def clear(self) -> None:
        self._groups.clear()
        self._size = 0

    def forget(self, group_id: str) -> None:
        self._size -= len(self._groups.pop(group_id, ()))


async def settled(calls: Iterable[Awaitable[Any]]) -> list[Any]:
    """What each of the pipelined calls came to: its reply, or the store's error.

    :raises BaseException: what is none of the store's.
    """
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    for outcome in outcomes:
        if isinstance(outcome, BaseException) and not isinstance(outcome, KorvetError):
            raise outcome
    return outcomes


def replies(outcomes: list[Any]) -> list[Any]:
    """The replies.

    :raises KorvetError: where a call failed.
    """
    for outcome in outcomes:
        if isinstance(outcome, KorvetError):
            raise outcome
    return outcomes


def own(error: BaseException) -> KorvetError:
    """What `settled` left in a reply's place, as what it is."""
    assert isinstance(error, KorvetError)
    return error


def units_of(pending: Mapping[tuple[str, Place], str]) -> Iterator[list[Unit]]:
    """What is pending by groups, so much together as may be followed at once."""
    groups: dict[str, list[tuple[str, str]]] = {}
    for (group_id, place), topic_id in pending.items():
        groups.setdefault(group_id, []).append((name_of(place), topic_id))
    units: list[Unit] = []
    size = 0
    for group_id, places in groups.items():
        for some in chunks(places, AT_ONCE):
            if size + len(some) > AT_ONCE:
                yield units
                units, size = [], 0
            units.append(Unit(group_id, some))
            size += len(some)
    if units:
        yield units


def chunks(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """The items in their order, at most ``size`` at a time."""
    return (items[at : at + size] for at in range(0, len(items), size))


def pairs(flat: Sequence[bytes]) -> Iterator[tuple[str, str]]:
    """Places and their topics' ids, as a group remembers them."""
    return ((place.decode(), topic_id.decode()) for place, topic_id in zip(flat[::2], flat[1::2], strict=True))


def name_of(place: Place) -> str:
    """A place as Redis knows it."""
    return f"{place[0]}:{place[1]}"


def place_of(name: str) -> Place:
    """The place of a name."""
    topic, _, partition = name.rpartition(":")
    return topic, int(partition)
