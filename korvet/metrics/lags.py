"""The lags of the last hour: one number a minute for each group and topic, from the supervisor's rounds.

They are in memory alone, and their bytes are bounded. A group is kept whole or not at all, so that a sum over its
topics is true.
"""

from __future__ import annotations

from array import array
from collections import defaultdict, deque
from collections.abc import Mapping
from itertools import chain
from typing import Any, Final

EVERY_S: Final = 59.0
"""The least time between two numbers; rounds come each ten seconds or more."""
MOST_NUMBERS: Final = 60
"""The lags that are kept of a group and a topic."""
MOST_BYTES: Final = 32 << 20
"""The memory of all lags that are kept."""
MOST_TOPICS: Final = 200
"""Of one group."""
UNKNOWN: Final = -1
_MOST_LAG: Final = 2**63 - 1
"""The largest number that the array holds. Clients may commit any offset, and one far below 0 has a larger lag."""
_SERIES_BYTES: Final = 8 * MOST_NUMBERS + 400
_NAME_BYTES: Final = 4
"""The most of a character."""

GroupTopic = tuple[str, str]


class _Namespace:
    """Times in seconds since 1970, and by group and topic as many lags; ``size_bytes`` is what they take."""

    def __init__(self) -> None:
        self.times: deque[float] = deque(maxlen=MOST_NUMBERS)
        self.groups: dict[str, dict[str, array[int]]] = {}
        self.size_bytes = 0


class Lags:
    """The lags of all namespaces that a process reads."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most_bytes = most_bytes
        self._namespaces: dict[str, _Namespace] = {}

    def note(self, namespace: str, lags: Mapping[GroupTopic, int], now: float) -> None:
        """Take the lags that a round saw in a namespace, unless there were some within the minute.

        :param lags: in records, by group and topic.
        """
        # A clock that was set back begins anew; a namespace stays for an hour after its last round.
        self._namespaces = {
            name: one for name, one in self._namespaces.items() if 0 <= now - one.times[-1] < MOST_NUMBERS * EVERY_S
        }
        own = self._namespaces.get(namespace, _Namespace())
        if own.times and now - own.times[-1] < EVERY_S:
            return
        own.times.append(now)
        others = sum(one.size_bytes for one in self._namespaces.values()) - own.size_bytes
        own.groups, own.size_bytes = _moved_on(own, lags, self._most_bytes - others)
        self._namespaces[namespace] = own

    def of_group(self, namespace: str, group: str) -> Mapping[str, Any] | None:
        """The lags of a group: ``times`` in seconds since 1970, and ``topics`` with a list of lags each.

        A lag is None if it is not known. The topics are empty for a group that is not kept. Returns None for a
        namespace that is not read here.
        """
        own = self._namespaces.get(namespace)
        if own is None:
            return None
        topics = own.groups.get(group, {})
        return {
            "times": list(own.times),
            "topics": {topic: [None if lag == UNKNOWN else lag for lag in series] for topic, series in topics.items()},
        }


def _moved_on(
    own: _Namespace, lags: Mapping[GroupTopic, int], most_bytes: int
) -> tuple[dict[str, dict[str, array[int]]], int]:
    """The groups of a namespace with one more number each, as far as the bytes go, and these bytes."""
    now: dict[str, dict[str, int]] = defaultdict(dict)
    for (group, topic), lag in lags.items():
        now[group][topic] = lag
    kept: dict[str, dict[str, array[int]]] = {}
    size_bytes = 0
    # New groups, however many, replace only groups that are gone.
    there = [group for group in own.groups if group in now]
    new = [group for group in now if group not in own.groups]
    gone = [group for group in own.groups if group not in now]
    for group in chain(there, new, gone):
        if size_bytes + _SERIES_BYTES > most_bytes:
            break
        known, seen = own.groups.get(group, {}), now.get(group, {})
        topics = [*seen, *(topic for topic in known if topic not in seen and _is_known(known[topic], len(own.times)))]
        cost = sum(_SERIES_BYTES + _NAME_BYTES * (len(group) + len(topic)) for topic in topics)
        if topics and len(topics) <= MOST_TOPICS and size_bytes + cost <= most_bytes:
            kept[group] = {topic: _series(known.get(topic), seen.get(topic), len(own.times)) for topic in topics}
            size_bytes += cost
    return kept, size_bytes


def _is_known(numbers: array[int], count: int) -> bool:
    """True if a series still has a lag after one more unknown number."""
    return max(numbers[1 - count :] if count > 1 else (), default=UNKNOWN) > UNKNOWN


def _series(known: array[int] | None, lag: int | None, count: int) -> array[int]:
    """A topic's last numbers, with this lag as the newest; None stands for an unknown one."""
    numbers = array("q", [UNKNOWN]) * (count - 1) if known is None else known
    numbers.append(UNKNOWN if lag is None else min(lag, _MOST_LAG))
    del numbers[:-count]
    return numbers
