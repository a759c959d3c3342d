"""SaslHandshake (17), version 1: a client chooses the mechanism of its login.

It is advertised from version 0, because librdkafka up to 2.0 looks for that before it logs in.

- 0: tokens follow without headers; not served, because no current client uses it
- 1: tokens follow in SaslAuthenticate

Source: SaslServerAuthenticator.handleHandshakeRequest; KIP-43, KIP-152.
"""

from __future__ import annotations

from kio.schema.errors import ErrorCode

from korvet.api import IN_TURN, api
from korvet.api.shared import needs
from korvet.api.shared.context import Context
from korvet.wire import requests
from korvet.wire.writer import Fields


@api(17, 1, 1, needs=needs.nothing, start=IN_TURN, advertised_lowest=0)
async def handle(ctx: Context, request: requests.SaslHandshakeRequest) -> Fields:
    login = ctx.login
    if login is None:
        return {"error_code": ErrorCode.illegal_sasl_state, "mechanisms": ()}
    return {"error_code": login.handshake(request.mechanism).error, "mechanisms": tuple(login.mechanisms)}
