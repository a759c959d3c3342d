"""ListPartitionReassignments (46), version 0: the partitions that are being moved. There are none.

A partition lies in Redis, and every front-end serves it: nothing moves between brokers. The answer leaves out
partitions that do not move or do not exist, as Kafka's does.

Source: ReplicationControlManager.listPartitionReassignments; KIP-455.
"""

from __future__ import annotations

from typing import Any

from korvet.api import api
from korvet.api.shared.context import Context
from korvet.wire.codec import Fields


@api(46, 0, 0)
async def handle(_ctx: Context, _request: Any) -> Fields:
    return {"error_code": 0, "error_message": None, "topics": ()}
