"""Figures by name and labels: a front-end process writes them to its supervisor, which adds them up.

A value is a number, or the list that `korvet.metrics.families.Kind` describes. JSON carries them, one line a second.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from itertools import zip_longest
from typing import Final

from korvet.metrics.families import FAMILIES, Joined, Kind

Value = float | list[float]
_ADDED: Final = (Kind.COUNTER, Kind.HISTOGRAM)
"""Kinds of figures that stay after their process has ended."""


class Samples:
    """Values by their family's name and labels."""

    def __init__(self) -> None:
        self.values: dict[str, dict[tuple[str, ...], Value]] = {}

    def set(self, name: str, value: Value, *labels: str) -> None:
        """Set a value.

        :raises KeyError: there is no family of this name.
        """
        assert len(FAMILIES[name].labels) == len(labels), name
        self.values.setdefault(name, {})[labels] = value

    def add(self, other: Samples, *, only_added: bool = False) -> None:
        """Take in another process's figures.

        :param only_added: of a process that has ended: counters stay, and gauges go.
        """
        for name, values in other.values.items():
            family = FAMILIES[name]
            if only_added and family.kind not in _ADDED:
                continue
            mine = self.values.setdefault(name, {})
            for labels, value in values.items():
                mine[labels] = _joined(family.joined, mine.get(labels), value)

    @property
    def count(self) -> int:
        """The number of values."""
        return sum(map(len, self.values.values()))

    def to_json(self) -> str:
        """One line."""
        listed = {name: [[labels, value] for labels, value in values.items()] for name, values in self.values.items()}
        return json.dumps(listed, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str | bytes) -> Samples:
        """Read what `to_json` wrote, without names that are unknown here.

        :raises ValueError: the text is not from `to_json`.
        """
        samples = cls()
        listed: Mapping[str, Iterable[tuple[list[str], Value]]] = json.loads(text)
        for name, values in listed.items():
            if name in FAMILIES:
                samples.values[name] = {tuple(labels): value for labels, value in values}
        return samples


def _joined(how: Joined, mine: Value | None, value: Value) -> Value:
    if mine is None:
        return value
    if isinstance(mine, list) and isinstance(value, list):
        return [one + other for one, other in zip_longest(mine, value, fillvalue=0.0)]
    if isinstance(mine, list) or isinstance(value, list):
        return value
    return mine + value if how is Joined.SUM else max(mine, value)
