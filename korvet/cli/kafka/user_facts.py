"""The facts about a user in ``korvet users``."""

from __future__ import annotations

from typing import NamedTuple


class User(NamedTuple):
    """A user with a password for one mechanism of SCRAM."""

    name: str
    mechanism: str
    iterations: int
