"""DescribeUserScramCredentials (50), version 0: the mechanisms and iterations of users' passwords, and nothing else.

Source: ScramImage.describe; KIP-554.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from kio.schema.errors import ErrorCode

from korvet.api import api
from korvet.api.shared import needs
from korvet.api.shared.context import Context
from korvet.security.scram import TYPES
from korvet.wire import requests
from korvet.wire.writer import Fields

Infos = Sequence[Fields]
_NUMBERS = {name: number for number, name in TYPES.items()}


@api(
    50,
    0,
    0,
    needs=needs.cluster(
        needs.DESCRIBE,
        refused=lambda *_: {
            "error_code": ErrorCode.cluster_authorization_failed,
            "error_message": None,
            "results": (
                {
                    "user": "",
                    "error_code": ErrorCode.cluster_authorization_failed,
                    "error_message": None,
                    "credential_infos": (),
                },
            ),
        },
    ),
)
async def handle(ctx: Context, request: requests.DescribeUserScramCredentialsRequest) -> Fields:
    users = ctx.frontend.users
    await users.refresh()
    infos: dict[str, list[Fields]] = {}
    async for key, credential in ctx.paced(sorted(users.credentials.items())):
        if key.mechanism in _NUMBERS:
            info = {"mechanism": _NUMBERS[key.mechanism], "iterations": credential.iterations}
            infos.setdefault(key.user, []).append(info)
    # As in Kafka, a request without names means every user.
    times = Counter(user.name for user in request.users or ()) or dict.fromkeys(infos, 1)
    return {
        "error_code": 0,
        "error_message": "",
        "results": [_described(name, count, infos) async for name, count in ctx.paced(times.items())],
    }


def _described(name: str, times: int, infos: Mapping[str, Infos]) -> Fields:
    if times > 1:
        code = ErrorCode.duplicate_resource
        message = f"Cannot describe SCRAM credentials for the same user twice in a single request: {name}"
    elif name not in infos:
        code = ErrorCode.resource_not_found
        message = f"Attempt to describe a user credential that does not exist: {name}"
    else:
        return {"user": name, "error_code": 0, "error_message": "", "credential_infos": infos[name]}
    return {"user": name, "error_code": code, "error_message": message, "credential_infos": ()}
