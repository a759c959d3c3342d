"""A version's codes for a fenced producer, and for a transaction that can only be aborted."""

from __future__ import annotations

from korvet.codes import (
    INVALID_PRODUCER_EPOCH,
    PRODUCER_FENCED,
    TRANSACTION_ABORTABLE,
    UNKNOWN_PRODUCER_ID,
)


def code_for_version(code: int, version: int, fenced_since: int, abortable_since: int) -> int:
    """A code as the clients of a version know it: PRODUCER_FENCED and TRANSACTION_ABORTABLE came later.

    Clients before KIP-890 get UNKNOWN_PRODUCER_ID for TRANSACTION_ABORTABLE. On it librdkafka and Java's client abort
    the transaction and go on with another epoch. aiokafka and kafka-python end on any code.
    """
    if code == TRANSACTION_ABORTABLE and version < abortable_since:
        return UNKNOWN_PRODUCER_ID
    return INVALID_PRODUCER_EPOCH if code == PRODUCER_FENCED and version < fenced_since else code
