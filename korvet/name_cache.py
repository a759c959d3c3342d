"""A bounded cache of what is computed from a name, such as a group's keys."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

T = TypeVar("T")

_LONGEST_BYTES: Final = 256


class NameCache(dict[str, T]):
    """``cache[name]`` is the value of a name, computed at its first use.

    It forgets all names at ``most``. It keeps none of more than 256 bytes: clients may invent ids of 1 KiB.

    :param compute: returns the value of a name. What it raises, the lookup raises, and nothing is kept.
    """

    def __init__(self, compute: Callable[[str], T], most: int) -> None:
        super().__init__()
        self._compute = compute
        self._most = most

    def __missing__(self, name: str) -> T:
        value = self._compute(name)
        if len(name.encode()) <= _LONGEST_BYTES:
            if len(self) >= self._most:
                self.clear()
            self[name] = value
        return value
