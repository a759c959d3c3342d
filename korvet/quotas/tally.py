"""The connections of one kind, as one front-end knows them: its own, and those of all others. Without I/O.

The front-end decides by what it knows. It may let in too many, until it hears of the others a moment later; then it
closes the newest ones. So those who came first stay, by the order in which Redis hears of them.

Names are clients' choice, and connections come and go while Redis hears of none. So a name is kept for its connections,
or because Redis may know some of it; of all others only so many.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from itertools import islice
from time import monotonic
from typing import Final, NamedTuple, Protocol

KNOWN_S: Final = 10.0
"""What was heard of others counts for so long."""
_MOST_OTHERS: Final = 10_000
_MOST_ASKED: Final = 10_000
"""Names without connections that are told of only to hear of others; beyond it no further one is."""


class CountedConnection(Protocol):
    """A connection."""

    def abort(self) -> None:
        """Close at once."""


class _Heard(NamedTuple):
    connections: int
    at: float


class Tally:
    """The connections by the names of what they count for.

    :param kind: the first word of the counters' names in Redis.
    :param most: the limit of a name; None without one.
    """

    def __init__(self, kind: str, most: Callable[[str], int | None], now: Callable[[], float] = monotonic) -> None:
        self.kind = kind
        self.on_change: Callable[[], None] | None = None
        """Called when there is something to tell; None if the front-end counts alone."""
        self.parts = 1
        """The front-ends among which limits are divided: 1 while Redis adds up."""
        self._most = most
        self._now = now
        self._own: Counter[str] = Counter()
        self._others: dict[str, _Heard] = {}
        self._changed: dict[str, None] = {}
        self._stored: set[str] = set()
        """Names of which Redis may know connections of this front-end."""
        self._fresh: defaultdict[str, dict[CountedConnection, None]] = defaultdict(dict)
        """Connections by name, the newest last, of which others have not heard."""
        self._told: defaultdict[str, dict[CountedConnection, None]] = defaultdict(dict)
        """Connections that were told of and not yet judged."""

    def most(self, name: str) -> int | None:
        """The limit of a name, or this front-end's part of it; None without one."""
        most = self._most(name)
        return most if most is None or self.parts == 1 else -(-most // self.parts)

    def is_over(self, name: str, more: int = 0) -> bool:
        """Whether there are too many connections, with some more. If so, others are asked again."""
        most = self.most(name)
        if most is None or self._own[name] + more + self._known(name) <= most:
            return False
        self._note(name)
        return True

    def come(self, name: str) -> None:
        """Count one more."""
        self._own[name] += 1
        self._note(name)

    def welcome(self, name: str, connection: CountedConnection) -> None:
        """Know who it is that was counted, so that it can be closed if there are too many."""
        if self._note(name):
            self._fresh[name][connection] = None

    def leave(self, name: str, connection: CountedConnection | None = None) -> None:
        """Count one less."""
        self._own[name] -= 1
        if not self._own[name]:
            del self._own[name]
        for known in (self._fresh, self._told):
            if connection is not None and name in known:
                known[name].pop(connection, None)
                if not known[name]:
                    del known[name]
        self._note(name)

    def _known(self, name: str) -> int:
        """The connections of others; nothing is known while limits are divided."""
        heard = self._others.get(name)
        is_known = heard is not None and self.parts == 1 and self._now() - heard.at <= KNOWN_S
        return heard.connections if heard is not None and is_known else 0

    def _note(self, name: str) -> bool:
        """Have a name told soon, if it has a limit or Redis may know of it, and others are to hear of it."""
        if self.on_change is None or (self._most(name) is None and name not in self._stored):
            return False
        if name not in self._own and name not in self._stored:
            self._changed.pop(name, None)
            if len(self._changed) >= _MOST_ASKED:
                return False
        self._changed[name] = None
        self.on_change()
        return True

    # ------------------------------------------------------------------ what is told and heard

    @property
    def has_own(self) -> bool:
        """Whether there are any connections."""
        return bool(self._own)

    @property
    def has_changes(self) -> bool:
        """Whether there is something to tell."""
        return bool(self._changed)

    def note_all(self) -> None:
        """Have all be told again."""
        for name in self._own:
            self._note(name)

    def changes(self, most: int) -> Mapping[str, int]:
        """The connections of some names that changed. What is told of them is `heard`, or `unheard` if that failed."""
        names = list(islice(self._changed, most))
        for name in names:
            del self._changed[name]
            if name in self._own:
                self._stored.add(name)
            if name in self._fresh:
                self._told[name].update(self._fresh.pop(name))
        return {name: self._own[name] for name in names}

    def heard(self, others: Mapping[str, int]) -> None:
        """Take over the connections of others, and close the newest ones of a name that has too many."""
        now = self._now()
        for name, count in others.items():
            if name not in self._own and name not in self._changed:
                self._stored.discard(name)
            self._others.pop(name, None)
            self._others[name] = _Heard(count, now)
            newest = list(self._told.pop(name, ()))
            most = self.most(name)
            # Those that came since are judged when they are told of.
            judged = self._own[name] - len(self._fresh.get(name, ()))
            excess = 0 if most is None else judged + count - most
            for connection in newest[-excess:] if excess > 0 else []:
                connection.abort()
        while len(self._others) > _MOST_OTHERS:
            # The one heard longest ago is asked for again when it is needed.
            del self._others[next(iter(self._others))]

    def unheard(self, names: Mapping[str, int]) -> None:
        """Have names be told again, of which Redis may have heard or not."""
        for name in names:
            self._note(name)
