"""InitProducerId (key 22), versions 0 to 5: an id for an idempotent producer.

- 2: flexible   - 3: the id and epoch a producer has   - 4: PRODUCER_FENCED   - 5: KIP-890

A producer without a transactional id always gets a new producer id, whatever it has. Transactional ids are not
served: they are answered as to one who may not use them.

Source: KafkaApis.handleInitProducerIdRequest, TransactionCoordinator.handleInitProducerId
"""

from __future__ import annotations

from typing import Any, Final

from kio.schema.errors import ErrorCode

from korvet.api import Answer, api
from korvet.api.context import Context
from korvet.errors import KorvetError, StoreError, StoreFull
from korvet.store.client import Purpose

_NONE: Final = -1


@api(22, 0, 5)
async def handle(ctx: Context, request: Any) -> Answer:
    """A producer id that was never given out, with epoch 0."""
    if request.transactional_id == "":
        return _refused(ErrorCode.invalid_request)
    if request.transactional_id is not None:
        return _refused(ErrorCode.transactional_id_authorization_failed)
    has_id = getattr(request, "producer_id", _NONE) != _NONE
    has_epoch = getattr(request, "producer_epoch", _NONE) != _NONE
    if has_id != has_epoch:
        return _refused(ErrorCode.invalid_request)
    keys = ctx.frontend.namespace.catalog
    try:
        _, producer_id = await ctx.frontend.store.fcall(Purpose.COORDINATE, "korvet_producer_id", keys)
    except StoreError:
        raise
    except KorvetError as error:
        # Both are what clients wait and try again for; a producer id that is lost on the way does no harm.
        is_full = isinstance(error, StoreFull)
        return _refused(ErrorCode.coordinator_load_in_progress if is_full else ErrorCode.coordinator_not_available)
    return {"error_code": ErrorCode.none, "producer_id": producer_id, "producer_epoch": 0}


def _refused(code: ErrorCode) -> dict[str, Any]:
    return {"error_code": code, "producer_id": _NONE, "producer_epoch": _NONE}
