"""The windows of quotas that count by default."""

from __future__ import annotations

from typing import Final

from korvet.configs.values import BrokerValues
from korvet.quotas.rules import Windows

WINDOWS: Final = Windows.of(BrokerValues({}))
