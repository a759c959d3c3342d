"""The error codes of a failing store for members of groups, and durations as kio reads them."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

import structlog

from korvet.codes import (
    COORDINATOR_NOT_AVAILABLE,
    POLICY_VIOLATION,
    UNKNOWN_SERVER_ERROR,
)
from korvet.errors import KorvetError, StoreFull, StoreUnavailable, TooMany, forget_frames

log = structlog.get_logger()

_MS: Final = timedelta(milliseconds=1)


def failure_code(error: KorvetError, api: str) -> int:
    """The error code of a call to a group or transaction that failed.

    - a retry helps: COORDINATOR_NOT_AVAILABLE, on which clients find the coordinator again and retry
    - a setting's bound is reached: POLICY_VIOLATION
    - anything else is a defect: UNKNOWN_SERVER_ERROR and a line in the log

    The function clears the error's traceback, whose frames refer to the request.
    """
    forget_frames(error)
    if isinstance(error, StoreUnavailable | StoreFull):
        return COORDINATOR_NOT_AVAILABLE
    if isinstance(error, TooMany):
        return POLICY_VIOLATION
    log.error("the store's answer cannot be used", api=api, reason=str(error))
    return UNKNOWN_SERVER_ERROR


def milliseconds(duration: timedelta) -> int:
    """The milliseconds of a request's duration."""
    return duration // _MS
