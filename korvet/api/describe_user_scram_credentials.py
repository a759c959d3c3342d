"""DescribeUserScramCredentials (50), version 0: the passwords with which users log in. Korvet has none.

Source: ScramPublisher, ScramImage.describe; KIP-554.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from kio.schema.errors import ErrorCode

from korvet.api import api
from korvet.api.shared import needs
from korvet.api.shared.context import Context
from korvet.wire.codec import Fields


@api(
    50,
    0,
    0,
    needs=needs.cluster(
        needs.DESCRIBE,
        refused=lambda *_: {
            "error_code": ErrorCode.cluster_authorization_failed,
            "error_message": needs.MESSAGES[needs.CLUSTER],
            "results": (),
        },
    ),
)
async def handle(ctx: Context, request: Any) -> Fields:
    times = Counter(user.name for user in request.users or ())
    return {
        "error_code": 0,
        "error_message": "",
        "results": [_missing(name, count) async for name, count in ctx.paced(times.items())],
    }


def _missing(name: str, times: int) -> Fields:
    if times > 1:
        code = ErrorCode.duplicate_resource
        message = f"Cannot describe SCRAM credentials for the same user twice in a single request: {name}"
    else:
        code = ErrorCode.resource_not_found
        message = f"Attempt to describe a user credential that does not exist: {name}"
    return {"user": name, "error_code": code, "error_message": message, "credential_infos": ()}
