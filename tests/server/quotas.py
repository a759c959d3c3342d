"""What the tests of quotas at a broker share: windows of a second, and clients with quotas of their own."""

from __future__ import annotations

from tests.api.quotas import limit
from tests.api.raw import unique

WINDOWS = {"quota.window.num": "2", "controller.quota.window.num": "10"}
"""What a second allows may be used at once."""
CLOCKS_S = 0.05
"""More than the broker's clock, which counts milliseconds, and a rounded throttle time make of a wait."""


def limited(port: int, **quotas: float | None) -> str:
    """A client id with quotas of its own."""
    name = unique("client")
    limit(port, {"client_id": name}, **quotas)
    return name
