"""Stand-ins for the turn to sweep, for tests of background work."""

from __future__ import annotations

import anyio


class Always:
    """This front-end has the turn; ``passed`` counts the requests to pass it on."""

    def __init__(self) -> None:
        self.passed = 0

    async def turn(self) -> None:
        await anyio.lowlevel.checkpoint()

    def pass_turn(self) -> None:
        self.passed += 1


class Never(Always):
    """Another front-end has the turn."""

    async def turn(self) -> None:
        await anyio.sleep_forever()
