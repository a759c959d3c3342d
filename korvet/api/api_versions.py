"""ApiVersions (key 18), versions 0 to 4: what this front-end serves. Built from the registry.

v1 has throttle_time_ms, v2 is v1, v3 is flexible and names the client's software (KIP-511) and the features, v4 may
name features whose lowest version is 0 (KIP-584's fix, KAFKA-17011). No feature is supported or finalized yet, so
finalized_features_epoch is -1. Software names follow Kafka's rule, or the answer is INVALID_REQUEST.
Source: ApiVersionsRequest, SimpleApiVersionManager, KIP-35.
"""

from __future__ import annotations

import re
from typing import Any

from kio.schema.errors import ErrorCode

from korvet.api import Answer, api, registry
from korvet.api.context import Context
from korvet.wire.codec import API_VERSIONS_KEY, Fields

HIGHEST = 4
_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9.-]*[a-zA-Z0-9])?")


@api(API_VERSIONS_KEY, 0, HIGHEST)
async def handle(ctx: Context, request: Any) -> Answer:
    if ctx.version >= 3 and not _names_its_software(request):
        return {"error_code": ErrorCode.invalid_request, "api_keys": (), "throttle_time": 0}
    return supported(ErrorCode.none)


def supported(error_code: ErrorCode) -> Fields:
    """Every API with the versions shown for it; with UNSUPPORTED_VERSION the answer (v0) to a version not known."""
    shown = tuple(
        {"api_key": api.key, "min_version": api.advertised_lowest, "max_version": api.highest}
        for _, api in sorted(registry().items())
    )
    if error_code is ErrorCode.unsupported_version:
        # As Kafka: only this API itself, for the client asks again and then gets them all.
        shown = tuple(entry for entry in shown if entry["api_key"] == API_VERSIONS_KEY)
    return {
        "error_code": error_code,
        "api_keys": shown,
        "throttle_time": 0,
        "finalized_features_epoch": -1,
        "zk_migration_ready": False,
    }


def _names_its_software(request: Any) -> bool:
    return all(_SOFTWARE.fullmatch(name) for name in (request.client_software_name, request.client_software_version))
