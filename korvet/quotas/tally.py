"""The connections of one kind as one front-end counts them: its own and the others'. Without I/O.

The front-end decides by the counts that it has. It may accept too many until the others' counts arrive a moment later;
then it closes its newest. So the earliest connections stay, in the order in which Redis counted them.

Clients choose the names, and connections come and go between reports. So a name is kept while it has connections or
Redis may have a count for it; the number of all other names is bounded.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from itertools import islice
from time import monotonic
from typing import Final, NamedTuple, Protocol

KNOWN_S: Final = 10.0
"""Seconds for which the others' counts stay valid."""
_MOST_OTHERS: Final = 10_000
_MOST_ASKED: Final = 10_000
"""The most names without own connections that are reported only to read the others' counts."""


class CountedConnection(Protocol):
    """A connection."""

    def abort(self) -> None:
        """Close at once."""


class _Heard(NamedTuple):
    connections: int
    at: float


class Tally:
    """The number of connections for each name.

    :param kind: the first word of the counters' names in Redis.
    :param most: returns the limit of a name; None without one.
    """

    def __init__(self, kind: str, most: Callable[[str], int | None], now: Callable[[], float] = monotonic) -> None:
        self.kind = kind
        self.on_change: Callable[[], None] | None = None
        """Called when counts await a report; None if the front-end counts alone."""
        self.parts = 1
        """The number of front-ends that share each limit: 1 while Redis adds up their counts."""
        self._most = most
        self._now = now
        self._own: Counter[str] = Counter()
        self._others: dict[str, _Heard] = {}
        self._changed: dict[str, None] = {}
        self._stored: set[str] = set()
        """Names that may have a count of this front-end in Redis."""
        self._fresh: defaultdict[str, dict[CountedConnection, None]] = defaultdict(dict)
        """Unreported connections by name, the newest last."""
        self._published: defaultdict[str, dict[CountedConnection, None]] = defaultdict(dict)
        """Reported connections that await the others' counts."""

    def most(self, name: str) -> int | None:
        """The limit of a name, or this front-end's share of it; None without one."""
        most = self._most(name)
        return most if most is None or self.parts == 1 else -(-most // self.parts)

    def is_over(self, name: str, more: int = 0) -> bool:
        """True if ``more`` connections would exceed the limit. If so, the others' counts are read again."""
        most = self.most(name)
        if most is None or self._own[name] + more + self._known(name) <= most:
            return False
        self._note(name)
        return True

    def increment(self, name: str) -> None:
        """Count one more."""
        self._own[name] += 1
        self._note(name)

    def register(self, name: str, connection: CountedConnection) -> None:
        """Remember a counted connection, so that it can be closed if there are too many."""
        if self._note(name):
            self._fresh[name][connection] = None

    def decrement(self, name: str, connection: CountedConnection | None = None) -> None:
        """Count one less."""
        self._own[name] -= 1
        if not self._own[name]:
            del self._own[name]
        for known in (self._fresh, self._published):
            if connection is not None and name in known:
                known[name].pop(connection, None)
                if not known[name]:
                    del known[name]
        self._note(name)

    def _known(self, name: str) -> int:
        """The others' connections; 0 while limits are divided among the front-ends."""
        heard = self._others.get(name)
        is_known = heard is not None and self.parts == 1 and self._now() - heard.at <= KNOWN_S
        return heard.connections if heard is not None and is_known else 0

    def _note(self, name: str) -> bool:
        """Mark a name for the next report if it has a limit or a count in Redis; true if others need it."""
        if self.on_change is None or (self._most(name) is None and name not in self._stored):
            return False
        if name not in self._own and name not in self._stored:
            self._changed.pop(name, None)
            if len(self._changed) >= _MOST_ASKED:
                return False
        self._changed[name] = None
        self.on_change()
        return True

    # ------------------------------------------------------------------ reports

    @property
    def has_own(self) -> bool:
        """True if this front-end has connections."""
        return bool(self._own)

    @property
    def has_changes(self) -> bool:
        """True if counts await a report."""
        return bool(self._changed)

    def note_all(self) -> None:
        """Mark every name for the next report."""
        for name in self._own:
            self._note(name)

    def changes(self, most: int) -> Mapping[str, int]:
        """The counts of at most ``most`` changed names; then call `heard`, or `unheard` if the report failed."""
        names = list(islice(self._changed, most))
        for name in names:
            del self._changed[name]
            if name in self._own:
                self._stored.add(name)
            if name in self._fresh:
                self._published[name].update(self._fresh.pop(name))
        return {name: self._own[name] for name in names}

    def heard(self, others: Mapping[str, int]) -> None:
        """Take over the others' counts, and close the newest connections of a name over its limit."""
        now = self._now()
        for name, count in others.items():
            if name not in self._own and name not in self._changed:
                self._stored.discard(name)
            self._others.pop(name, None)
            self._others[name] = _Heard(count, now)
            newest = list(self._published.pop(name, ()))
            most = self.most(name)
            # Connections that arrived since the report are judged at the next one.
            judged = self._own[name] - len(self._fresh.get(name, ()))
            excess = 0 if most is None else judged + count - most
            for connection in newest[-excess:] if excess > 0 else []:
                connection.abort()
        while len(self._others) > _MOST_OTHERS:
            # The count read longest ago is dropped, and read again when needed.
            del self._others[next(iter(self._others))]

    def unheard(self, names: Mapping[str, int]) -> None:
        """Mark names for another report: Redis may or may not have counted this one."""
        for name in names:
            self._note(name)
