"""What the handlers of transactions share: how a version's clients are told that another producer took over."""

from __future__ import annotations

from typing import Final

from kio.schema.errors import ErrorCode

INVALID_PRODUCER_EPOCH: Final = int(ErrorCode.invalid_producer_epoch)
INVALID_REQUEST: Final = int(ErrorCode.invalid_request)
PRODUCER_FENCED: Final = int(ErrorCode.producer_fenced)


def told(code: int, version: int, fenced_since: int) -> int:
    """A code as the clients of a version know it: PRODUCER_FENCED is a younger one (KIP-588)."""
    return INVALID_PRODUCER_EPOCH if code == PRODUCER_FENCED and version < fenced_since else code
