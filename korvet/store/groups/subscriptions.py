"""The topics to which members of the consumer protocol subscribe: names, and RE2's regular expressions."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from korvet.patterns import compiled
from korvet.store.catalog.catalog import Catalog
from korvet.store.catalog.topic import Topic

_MOST_PATTERNS: Final = 1000
_MOST_GONE: Final = 1000
"""The most names of deleted topics to keep, plus the number of topics."""
_UNTRIED: Final[tuple[int, frozenset[str]]] = (0, frozenset())

# RE2's words, and RE2J's in Kafka's messages if these differ.
_WORDS: Final = {
    "missing ]": "missing closing ]",
    "missing )": "missing closing )",
    "no argument for repetition operator": "missing argument to repetition operator",
    "bad repetition operator": "invalid nested repetition operator",
    "invalid repetition size": "invalid repeat count",
    "trailing \\": "trailing backslash at end of expression",
    "invalid perl operator": "invalid or unsupported Perl syntax",
    "invalid named capture group": "invalid named capture",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscribed:
    """The topics that the members of a group subscribe to.

    ``members`` are topic ids by member, ``partitions`` the numbers of partitions by topic id. ``text`` has a line for
    each topic, ordered by name: name, id in hex and number of partitions, with spaces between them.
    """

    members: Mapping[str, frozenset[UUID]]
    partitions: Mapping[UUID, int]
    text: str


class _Names:
    """Names of topics in the order in which they came, and the names that each regular expression matches.

    An expression tries each name once. The name of a deleted topic stays, so a caller looks it up in the catalog.
    """

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._names = list(names)
        self._known = set(self._names)
        self._matched: dict[str, tuple[int, frozenset[str]]] = {}

    def __len__(self) -> int:
        return len(self._names)

    def add(self, names: frozenset[str]) -> None:
        new = names - self._known
        self._known |= new
        self._names += new

    def untried(self, regex: str) -> int:
        return len(self._names) - self._matched.get(regex, _UNTRIED)[0]

    def matching(self, regex: str) -> frozenset[str]:
        tried, matched = self._matched.get(regex, _UNTRIED)
        new = self._names[tried:]
        if new:
            matches = compiled(regex).fullmatch
            matched |= frozenset(name for name in new if matches(name))
            if regex not in self._matched and len(self._matched) >= _MOST_PATTERNS:
                self._matched.clear()
            self._matched[regex] = tried + len(new), matched
        return matched


class Subscriptions:
    """Resolves subscriptions over the topics of the catalog."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._digest = ""
        self._names = _Names()

    def resolved(self, members: Iterable[tuple[str, Sequence[str], str]]) -> Subscribed:
        """The topics that members subscribe to, by the catalog as last read; no I/O.

        :param members: id, names, and regular expression or '' of each.
        """
        found: dict[tuple[frozenset[str], str], frozenset[UUID]] = {}
        by_member: dict[str, frozenset[UUID]] = {}
        topics: dict[UUID, Topic] = {}
        for member_id, names, regex in members:
            wanted = frozenset(names), regex
            if wanted not in found:
                subscribed = self._topics(*wanted)
                topics.update(subscribed)
                found[wanted] = frozenset(subscribed)
            by_member[member_id] = found[wanted]
        return Subscribed(
            members=by_member,
            partitions={id: topic.partitions for id, topic in topics.items()},
            text="\n".join(sorted(map(_line, topics.values()))),
        )

    def lines_of(self, names: Iterable[bytes]) -> bytes:
        """Lines as in `Subscribed.text` for some names; `name - 0` if there is no such topic."""
        found = ((name, self._catalog.topic(name.decode(errors="replace"))) for name in names)
        return b"\n".join(name + b" - 0" if topic is None else _line(topic).encode() for name, topic in found)

    def untried(self, regexes: Collection[str]) -> int:
        """The total number of names that expressions have not tried yet; no I/O."""
        names = self._known_names()
        return sum(map(names.untried, regexes))

    def match(self, regexes: Collection[str]) -> None:
        """Try the names counted by `untried`: some microseconds a name, or milliseconds for a hostile expression.

        May run in a thread.
        """
        names = self._names
        for regex in regexes:
            names.matching(regex)

    def _topics(self, names: frozenset[str], regex: str) -> dict[UUID, Topic]:
        wanted = names | self._known_names().matching(regex) if regex else names
        topics = (self._catalog.topic(name) for name in wanted)
        return {topic.id: topic for topic in topics if topic is not None}

    def _known_names(self) -> _Names:
        if self._digest != self._catalog.topics_digest:
            self._digest = self._catalog.topics_digest
            names = frozenset(topic.name for topic in self._catalog.topics())
            self._names.add(names)
            if len(self._names) > 2 * len(names) + _MOST_GONE:
                self._names = _Names(names)
        return self._names


def _line(topic: Topic) -> str:
    return f"{topic.name} {topic.id.hex} {topic.partitions}"


def regex_problem(regex: str) -> str | None:
    """The problem with a regular expression for a subscription, in Kafka's words, or None.

    Source: Utils.throwIfRegularExpressionIsInvalid
    """
    try:
        compiled(regex)
    except ValueError as error:
        word = str(error).partition(":")[0]
        return f"SubscribedTopicRegex `{regex}` is not a valid regular expression: {_WORDS.get(word, word)}."
    return None
