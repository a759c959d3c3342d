"""Doubt about the presence of clients, for some turns of the loop after a pause in reading."""

from __future__ import annotations

import asyncio
from typing import Final

_TURNS: Final = 4
"""Turns in which the loop reads what arrived, finds closed connections, and cancels their requests."""


class Doubt:
    """A doubt that ends after some turns of the loop. ``lasts`` counts those that are left."""

    __slots__ = ("_loop", "lasts")

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.lasts = 0

    def begin(self) -> None:
        """Start the doubt."""
        if not self.lasts:
            self._loop.call_soon(self._pass)
        self.lasts = _TURNS

    def _pass(self) -> None:
        self.lasts -= 1
        if self.lasts:
            self._loop.call_soon(self._pass)
