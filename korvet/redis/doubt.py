"""Doubt whether clients are still there: for some turns of the loop after the process or a connection did not read."""

from __future__ import annotations

import asyncio
from typing import Final

_TURNS: Final = 4
"""Until the loop has read what was there, found connections closed behind it, and cancelled their requests."""


class Doubt:
    """A doubt that ends by itself."""

    __slots__ = ("_loop", "_turns")

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._turns = 0

    @property
    def lasts(self) -> bool:
        """Whether the loop has had fewer turns since `begin`."""
        return self._turns > 0

    def begin(self) -> None:
        """Doubt from now on."""
        if not self._turns:
            self._loop.call_soon(self._pass)
        self._turns = _TURNS

    def _pass(self) -> None:
        self._turns -= 1
        if self._turns:
            self._loop.call_soon(self._pass)
