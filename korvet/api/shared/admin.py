"""Authorized operations, brokers, and the meaning of a failing store, for the APIs of admin clients."""

from __future__ import annotations

from typing import Final

import structlog
from kio.schema.errors import ErrorCode

from korvet.api.shared.context import Context
from korvet.errors import KorvetError, LostTier, StoreError, StoreFull, StoreRefusing, StoreUnavailable
from korvet.security.acl import OPERATIONS, ResourceType

log = structlog.get_logger()

# Without an authorizer a client may do all operations.
TOPIC_OPERATIONS: Final = OPERATIONS[ResourceType.TOPIC]
GROUP_OPERATIONS: Final = OPERATIONS[ResourceType.GROUP]
CLUSTER_OPERATIONS: Final = OPERATIONS[ResourceType.CLUSTER]
NOT_REQUESTED: Final = -(2**31)

TENANT_IS_FULL: Final = "There are as many topics or partitions as the limits of this tenant allow."
MALFORMED_MESSAGE: Final = (
    "This most likely occurs because of a request being malformed by the client library or the message was sent to an "
    "incompatible broker. See the broker logs for more details."
)
"""Kafka's message of INVALID_REQUEST."""


def brokers(ctx: Context, id_field: str) -> list[dict[str, object]]:
    """The brokers as this client sees them."""
    return [{id_field: node.id, "host": node.host, "port": node.port} for node in ctx.listener.nodes.all()]


def log_directory(ctx: Context) -> str:
    """The only directory that a broker shows; it stands for Redis."""
    return f"/redis/{ctx.frontend.namespace.name}"


def node_ids(ctx: Context) -> list[int]:
    """The ids of the brokers that this client sees."""
    return [node.id for node in ctx.listener.nodes.all()]


def change_failure(ctx: Context, error: KorvetError) -> tuple[ErrorCode, str]:
    """The code and message for a change that the store did not confirm.

    - nothing was applied: NOT_CONTROLLER, on which admin clients try again themselves
    - the change may have been applied: REQUEST_TIMED_OUT, after which the caller looks
    - Redis takes no writes, or lost what the tier has: KAFKA_STORAGE_ERROR, without a retry, because it lasts until an
      operator repairs it
    - anything else is a defect: UNKNOWN_SERVER_ERROR and a line in the log
    """
    if isinstance(error, LostTier):
        return ErrorCode.kafka_storage_error, str(error)
    if isinstance(error, StoreError):
        log.error("the store refused a change", api_key=ctx.api_key, reason=str(error))
        return ErrorCode.unknown_server_error, "The store is corrupt or of another version; see the front-end's log."
    if isinstance(error, StoreUnavailable) and error.outcome_unknown:
        return ErrorCode.request_timed_out, f"The store was lost before it answered: {error}"
    if isinstance(error, (StoreRefusing, StoreFull)):
        return ErrorCode.kafka_storage_error, f"The store takes no changes: {error}"
    return ErrorCode.not_controller, f"The store cannot take the change now: {error}"


def read_failure(ctx: Context, error: KorvetError, retriable: ErrorCode) -> ErrorCode:
    """The code for a failed read: ``retriable`` unless the store's reply itself was wrong."""
    if isinstance(error, StoreError):
        log.error("the store's answer cannot be used", api_key=ctx.api_key, reason=str(error))
        return ErrorCode.unknown_server_error
    return retriable
