"""Doubt about the presence of clients, for some turns of the loop after a pause in reading."""

from __future__ import annotations

import asyncio
from typing import Final

_TURNS: Final = 4
"""Turns in which the loop reads what arrived, finds closed connections, and cancels their requests."""


class Doubt:
    """A doubt that ends after some turns of the loop."""

    __slots__ = ("_loop", "_turns")

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._turns = 0

    @property
    def lasts(self) -> bool:
        """True while the loop has had fewer turns since `begin`."""
        return self._turns > 0

    def begin(self) -> None:
        """Start the doubt."""
        if not self._turns:
            self._loop.call_soon(self._pass)
        self._turns = _TURNS

    def _pass(self) -> None:
        self._turns -= 1
        if self._turns:
            self._loop.call_soon(self._pass)
