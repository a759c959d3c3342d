"""What members of the consumer protocol subscribe to: names, and regular expressions of RE2, over the catalog."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final
from uuid import UUID

import re2

from korvet.store.catalog import Catalog, Topic

_PATTERN_BYTES: Final = 1 << 20
_MOST_PATTERNS: Final = 1000

# RE2's words, and those of RE2J in Kafka's messages where they are others.
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
    """What the members of a group subscribe to.

    ``members`` are topic ids by member, ``partitions`` the number of each topic's; ``text`` has a line for each topic,
    its name, id in hex and partitions with spaces between them, by name.
    """

    members: Mapping[str, frozenset[UUID]]
    partitions: Mapping[UUID, int]
    text: str


class Subscriptions:
    """Resolves subscriptions. What a regular expression matches is kept until the catalog changes."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._generation = catalog.generation
        self._matched: dict[str, frozenset[str]] = {}

    def resolved(self, members: Iterable[tuple[str, Sequence[str], str]]) -> Subscribed:
        """What members subscribe to of the topics that there are, as the catalog was last read; no I/O.

        :param members: id, names, and regular expression or '' of each.
        """
        found: dict[tuple[frozenset[str], str], frozenset[UUID]] = {}
        by_member: dict[str, frozenset[UUID]] = {}
        topics: dict[UUID, Topic] = {}
        for member_id, names, regex in members:
            asked = frozenset(names), regex
            if asked not in found:
                subscribed = self._topics(*asked)
                topics.update(subscribed)
                found[asked] = frozenset(subscribed)
            by_member[member_id] = found[asked]
        return Subscribed(
            members=by_member,
            partitions={id: topic.partitions for id, topic in topics.items()},
            text="\n".join(sorted(map(_line, topics.values()))),
        )

    def lines_of(self, names: Iterable[str]) -> str:
        """Lines as in `Subscribed.text`, for each of some names; `name - 0` where there is no such topic."""
        found = ((name, self._catalog.topic(name)) for name in names)
        return "\n".join(f"{name} - 0" if topic is None else _line(topic) for name, topic in found)

    def _topics(self, names: frozenset[str], regex: str) -> dict[UUID, Topic]:
        wanted = names | self._matching(regex) if regex else names
        topics = (self._catalog.topic(name) for name in wanted)
        return {topic.id: topic for topic in topics if topic is not None}

    def _matching(self, regex: str) -> frozenset[str]:
        if self._generation != self._catalog.generation or len(self._matched) > _MOST_PATTERNS:
            self._matched.clear()
            self._generation = self._catalog.generation
        if regex not in self._matched:
            matches = _pattern(regex).fullmatch
            self._matched[regex] = frozenset(topic.name for topic in self._catalog.topics() if matches(topic.name))
        return self._matched[regex]


def _line(topic: Topic) -> str:
    return f"{topic.name} {topic.id.hex} {topic.partitions}"


def regex_problem(regex: str) -> str | None:
    """Why a member cannot subscribe by this, in Kafka's words (Utils.throwIfRegularExpressionIsInvalid), or None."""
    try:
        _pattern(regex)
    except ValueError as error:
        return f"SubscribedTopicRegex `{regex}` is not a valid regular expression: {error}."
    return None


@lru_cache(maxsize=_MOST_PATTERNS)
def _pattern(regex: str) -> Any:
    """A regular expression as RE2 knows it.

    :raises ValueError: with the reason, where it knows none.
    """
    options = re2.Options()
    options.log_errors = False
    options.max_mem = _PATTERN_BYTES
    compile_: Callable[..., Any] = re2.compile
    try:
        return compile_(regex, options)
    except (re2.error, UnicodeEncodeError) as error:
        why = error.args[0].decode(errors="replace") if isinstance(error.args[0], bytes) else str(error)
        word = why.partition(":")[0]
        raise ValueError(_WORDS.get(word, word)) from None
