"""SaslAuthenticate (36), versions 0 to 2: a step of a login.

- 1: session_lifetime_ms (KIP-368)   - 2: flexible

A failure is answered after connection.failed.authentication.delay.ms, counted from the request, so its time does not
reveal the cause.

Source: SaslServerAuthenticator.handleSaslToken; KIP-152, KIP-368.
"""

from __future__ import annotations

import anyio
from kio.schema.errors import ErrorCode

from korvet.api import IN_TURN, api
from korvet.api.shared import needs
from korvet.api.shared.context import Context
from korvet.security.sasl import State
from korvet.wire import requests
from korvet.wire.writer import Fields


@api(36, 0, 2, needs=needs.nothing, start=IN_TURN)
async def handle(ctx: Context, request: requests.SaslAuthenticateRequest) -> Fields:
    login = ctx.login
    if login is None:
        return {
            "error_code": ErrorCode.illegal_sasl_state,
            "error_message": "SaslAuthenticate request received after successful authentication",
            "auth_bytes": b"",
        }
    answered_at = anyio.current_time() + login.failed_s
    outcome = await login.authenticate(request.auth_bytes, ctx.client_host)
    if login.state is State.FAILED:
        await anyio.sleep_until(answered_at)
    return {
        "error_code": outcome.error,
        "error_message": outcome.message,
        "auth_bytes": outcome.token,
        "session_lifetime": outcome.lifetime_ms,
    }
