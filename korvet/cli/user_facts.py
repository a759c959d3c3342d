"""What ``korvet users`` shows of a user."""

from __future__ import annotations

from typing import NamedTuple


class User(NamedTuple):
    """A user with a password for one mechanism of SCRAM."""

    name: str
    mechanism: str
    iterations: int
