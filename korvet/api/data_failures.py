"""What a failing store means to those who produce and consume."""

from __future__ import annotations

from typing import Final

import structlog
from kio.schema.errors import ErrorCode

from korvet.errors import KorvetError, StoreFull, StoreUnavailable

log = structlog.get_logger()

KAFKA_STORAGE_ERROR: Final = int(ErrorCode.kafka_storage_error)
NOT_LEADER_OR_FOLLOWER: Final = int(ErrorCode.not_leader_or_follower)
REQUEST_TIMED_OUT: Final = int(ErrorCode.request_timed_out)
UNKNOWN_SERVER_ERROR: Final = int(ErrorCode.unknown_server_error)
UNKNOWN_TOPIC_ID: Final = int(ErrorCode.unknown_topic_id)
UNKNOWN_TOPIC_OR_PARTITION: Final = int(ErrorCode.unknown_topic_or_partition)


def failure_code(error: KorvetError, api: str) -> int:
    """The error code of a partition that the store failed.

    - lost on the way: REQUEST_TIMED_OUT, for the batch may or may not be there; clients try again
    - not reached: NOT_LEADER_OR_FOLLOWER, on which clients ask for metadata and try again without counting it as a try
    - at maxmemory: KAFKA_STORAGE_ERROR, which they do not give up on either
    - anything else is a defect: UNKNOWN_SERVER_ERROR and a line in the log
    """
    if isinstance(error, StoreUnavailable):
        return REQUEST_TIMED_OUT if error.outcome_unknown else NOT_LEADER_OR_FOLLOWER
    if isinstance(error, StoreFull):
        return KAFKA_STORAGE_ERROR
    log.error("the store's answer cannot be used", api=api, reason=str(error))
    return UNKNOWN_SERVER_ERROR


def read_failure_code(error: KorvetError, api: str) -> int:
    """The error code of a partition that could not be read: what was lost on the way is as good as not reached.

    Never REQUEST_TIMED_OUT: on a Fetch the Java consumer takes it for a broker's defect and ends.
    """
    return NOT_LEADER_OR_FOLLOWER if isinstance(error, StoreUnavailable) else failure_code(error, api)
