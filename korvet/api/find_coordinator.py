"""FindCoordinator (key 10), versions 0 to 6.

- 1: transactions   - 3: flexible   - 4: several keys   - 5: KIP-890   - 6: share groups

Every front-end serves every group and every transactional id, so the coordinator is a hint (`korvet.api.shared.nodes`).
Share groups are answered as in a Kafka that has them turned off.

Source: KafkaApis.handleFindCoordinatorRequest
"""

from __future__ import annotations

from typing import Any, Final

from kio.schema.errors import ErrorCode

from korvet.api import Answer, api
from korvet.api.shared import needs
from korvet.api.shared.context import Context
from korvet.wire import requests

_GROUP: Final = 0
_TRANSACTION: Final = 1
_SHARE: Final = 2
_BATCHED_SINCE: Final = 4
_SHARE_SINCE: Final = 6
_UNKNOWN_TYPE: Final = "unknown coordinator type"
_KINDS: Final = {_GROUP: needs.GROUP, _TRANSACTION: needs.TRANSACTIONAL_ID}
_NOWHERE: Final = {"node_id": -1, "host": "", "port": -1}


@api(10, 0, 6, needs=needs.by_handler)
async def handle(ctx: Context, request: requests.FindCoordinatorRequest) -> Answer:
    """A node for each group or transactional id of the request."""
    key_type = request.key_type
    if ctx.version < _BATCHED_SINCE:
        return _find(ctx, key_type, request.key)
    return {
        "coordinators": [{"key": key, **_find(ctx, key_type, key)} async for key in ctx.paced(request.coordinator_keys)]
    }


def _find(ctx: Context, key_type: int, key: str) -> dict[str, Any]:
    rights, is_share = ctx.rights, key_type == _SHARE and ctx.version >= _SHARE_SINCE
    if is_share and rights is not None and not rights.allows_on_cluster(needs.CLUSTER_ACTION):
        return {
            "error_code": needs.CODES[needs.CLUSTER], "error_message": needs.MESSAGES[needs.CLUSTER], **_NOWHERE
        }  # fmt: skip
    if key_type not in _KINDS:
        message = "" if key_type == _SHARE and ctx.version >= _BATCHED_SINCE else _UNKNOWN_TYPE
        return {"error_code": ErrorCode.invalid_request, "error_message": message, **_NOWHERE}
    kind = _KINDS[key_type]
    if rights is not None and not rights.allows(needs.DESCRIBE, kind, key):
        message = "" if ctx.version >= _BATCHED_SINCE else needs.MESSAGES[kind]
        return {"error_code": needs.CODES[kind], "error_message": message, **_NOWHERE}
    node = ctx.listener.nodes.coordinator(key)
    address = {"node_id": node.id, "host": node.host, "port": node.port}
    return {"error_code": ErrorCode.none, "error_message": "", **address}
