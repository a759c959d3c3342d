"""What groups' handlers share: what a failing store means to a client, and durations as kio reads them."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

import structlog
from kio.schema.errors import ErrorCode

from korvet.errors import KorvetError, StoreFull, StoreUnavailable

log = structlog.get_logger()

COORDINATOR_NOT_AVAILABLE: Final = int(ErrorCode.coordinator_not_available)
INVALID_GROUP_ID: Final = int(ErrorCode.invalid_group_id)
UNKNOWN_MEMBER_ID: Final = int(ErrorCode.unknown_member_id)
UNKNOWN_SERVER_ERROR: Final = int(ErrorCode.unknown_server_error)
_MS: Final = timedelta(milliseconds=1)


def failure_code(error: KorvetError, api: str) -> int:
    """COORDINATOR_NOT_AVAILABLE where trying again helps: clients look for the coordinator and do.

    Anything else is a defect: UNKNOWN_SERVER_ERROR and a line in the log.
    """
    if isinstance(error, StoreUnavailable | StoreFull):
        return COORDINATOR_NOT_AVAILABLE
    log.error("the store's answer cannot be used", api=api, reason=str(error))
    return UNKNOWN_SERVER_ERROR


def milliseconds(duration: timedelta) -> int:
    """A duration of a request."""
    return duration // _MS
