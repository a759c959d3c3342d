"""The error codes of a failing store for producers and consumers."""

from __future__ import annotations

from typing import Final

import structlog

from korvet.codes import (
    CORRUPT_MESSAGE,
    KAFKA_STORAGE_ERROR,
    MESSAGE_TOO_LARGE,
    NOT_LEADER_OR_FOLLOWER,
    REQUEST_TIMED_OUT,
    UNKNOWN_SERVER_ERROR,
)
from korvet.errors import (
    DamagedLog,
    KorvetError,
    LostTier,
    StoreFull,
    StoreRefusing,
    StoreUnavailable,
    ValueTooLarge,
    forget_frames,
)

log = structlog.get_logger()

PASSING_S: Final = 0.1
"""The delay of an answer that only makes the client retry: Kafka's default of retry.backoff.ms.

The Java consumer repeats a Fetch that failed at once, and aiokafka a Metadata request without leaders. In an outage of
Redis each of them would send hundreds a second.
"""
LASTING: Final = (CORRUPT_MESSAGE, UNKNOWN_SERVER_ERROR)
"""Codes of failures that last until an operator repairs them.

Clients repeat the request at once after such a code, so it is sent only at the end of the wait, or with other
partitions' records.
"""


def failure_code(error: KorvetError, api: str) -> int:
    """The error code of a partition whose command failed.

    - the reply was lost: REQUEST_TIMED_OUT, because the batch may or may not be in the log; clients retry
    - Redis was not reached: NOT_LEADER_OR_FOLLOWER, on which clients request metadata and retry without counting the
      attempt
    - at maxmemory: KAFKA_STORAGE_ERROR, on which clients do not give up either
    - larger than Redis takes: MESSAGE_TOO_LARGE, on which clients split the batch, or give it up
    - only the tier has the partition's records: KAFKA_STORAGE_ERROR until they are restored
    - anything else is a defect: UNKNOWN_SERVER_ERROR and a line in the log; a damaged partition has had its line

    The function clears the error's traceback, whose frames refer to the request.
    """
    forget_frames(error)
    if isinstance(error, StoreUnavailable):
        return REQUEST_TIMED_OUT if error.outcome_unknown else NOT_LEADER_OR_FOLLOWER
    if isinstance(error, StoreFull | LostTier):
        return KAFKA_STORAGE_ERROR
    if isinstance(error, ValueTooLarge):
        return MESSAGE_TOO_LARGE
    if not isinstance(error, DamagedLog):
        log.error("the store's answer cannot be used", api=api, reason=str(error))
    return UNKNOWN_SERVER_ERROR


def failure_message(error: KorvetError) -> str | None:
    """The message for the code: the reason why Redis takes no writes, or not this one, or why only the tier has the
    records; else None."""
    return str(error) if isinstance(error, StoreRefusing | ValueTooLarge | LostTier) else None


def read_failure_code(error: KorvetError, api: str) -> int:
    """The error code of a partition that could not be read; a lost reply counts as a Redis that was not reached.

    It is never REQUEST_TIMED_OUT: on a Fetch the Java consumer treats that as a broker's defect and ends.
    """
    return NOT_LEADER_OR_FOLLOWER if isinstance(error, StoreUnavailable) else failure_code(error, api)
