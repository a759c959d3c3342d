"""InitProducerId (key 22), versions 0 to 5: an id for an idempotent or a transactional producer.

- 2: flexible   - 3: the producer's current id and epoch   - 4: PRODUCER_FENCED   - 5: KIP-890

A producer without a transactional id always gets a new producer id. A producer with a transactional id gets that id's,
with an epoch that fences all earlier producers. The coordinator aborts an open transaction first, and the answer waits
for its end; Kafka answers CONCURRENT_TRANSACTIONS until then.

Source: KafkaApis.handleInitProducerIdRequest, TransactionCoordinator.handleInitProducerId
"""

from __future__ import annotations

from typing import Any, Final

from kio.schema.errors import ErrorCode

from korvet.api import Answer, api
from korvet.api.shared import needs
from korvet.api.shared.context import Context
from korvet.api.shared.group_failures import failure_code, milliseconds
from korvet.api.shared.transaction_failures import code_for_version
from korvet.errors import KorvetError, StoreError
from korvet.security.acl import Operation
from korvet.security.rights import Rights
from korvet.wire import requests

_NONE: Final = -1
_ABORTABLE_SINCE: Final = 0
"""InitProducerId never answers TRANSACTION_ABORTABLE."""
_FENCED_SINCE: Final = 4


def _check(_ctx: Context, rights: Rights, request: requests.InitProducerIdRequest) -> needs.Narrowed | None:
    if request.transactional_id is not None:
        if rights.allows(needs.WRITE, needs.TRANSACTIONAL_ID, request.transactional_id):
            return None
        return needs.refusal(_refused(ErrorCode.transactional_id_authorization_failed))
    if rights.allows_some(needs.WRITE, needs.TOPIC) or rights.allows_on_cluster(Operation.IDEMPOTENT_WRITE):
        return None
    return needs.refusal(_refused(ErrorCode.cluster_authorization_failed))


@api(22, 0, 5, needs=_check)
async def handle(ctx: Context, request: requests.InitProducerIdRequest) -> Answer:
    """A producer id and an epoch."""
    producer_id, producer_epoch = request.producer_id, request.producer_epoch
    if request.transactional_id == "" or (producer_id == _NONE) != (producer_epoch == _NONE):
        return _refused(ErrorCode.invalid_request)
    if request.transactional_id is None:
        return await _fresh(ctx)
    timeout_ms = milliseconds(request.transaction_timeout)
    if not 0 < timeout_ms <= ctx.frontend.catalog.integer(None, "transaction.max.timeout.ms"):
        return _refused(ErrorCode.invalid_transaction_timeout)
    try:
        answer = await ctx.frontend.transactions.init(request.transactional_id, timeout_ms, producer_id, producer_epoch)
    except KorvetError as error:
        return _refused(failure_code(error, "init_producer_id"))
    if answer.code != 0:
        return _refused(code_for_version(answer.code, ctx.version, _FENCED_SINCE, _ABORTABLE_SINCE))
    return {"error_code": 0, "producer_id": answer.producer_id, "producer_epoch": answer.producer_epoch}


async def _fresh(ctx: Context) -> Answer:
    """A new producer id, with epoch 0."""
    try:
        producer_id = await ctx.frontend.transactions.fresh_id()
    except StoreError:
        raise
    except KorvetError:
        # Clients wait and retry on this code; a lost producer id does no harm.
        return _refused(ErrorCode.coordinator_not_available)
    return {"error_code": 0, "producer_id": producer_id, "producer_epoch": 0}


def _refused(code: int) -> dict[str, Any]:
    return {"error_code": code, "producer_id": _NONE, "producer_epoch": _NONE}
