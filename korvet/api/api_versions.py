"""ApiVersions (key 18), versions 0 to 4: what this front-end serves. Built from the registry.

v1 has throttle_time_ms, v2 is v1, v3 is flexible and names the client's software (KIP-511) and the features, v4 may
name supported features whose lowest version is 0 (KIP-584's fix, KAFKA-17011). Features are those of this version, for
they are the same at every front-end; so their epoch is the number of times that a version of korvet changed them.
Software names follow Kafka's rule, or the answer is INVALID_REQUEST.
Source: ApiVersionsRequest, ApiVersionsResponse, SimpleApiVersionManager, KIP-35.
"""

from __future__ import annotations

import re
from typing import Any, Final

from kio.schema.errors import ErrorCode

from korvet.api import Answer, api, registry
from korvet.api.context import Context
from korvet.wire.codec import API_VERSIONS_KEY, Fields

HIGHEST = 4
FEATURES: Final = {"group.version": (0, 1), "transaction.version": (0, 2)}
"""Lowest and highest level that is supported; the highest one is finalized."""
FEATURES_EPOCH: Final = 2
_FEATURES_SINCE: Final = 3
_LEVEL_0_SINCE: Final = 4
_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9.-]*[a-zA-Z0-9])?")


@api(API_VERSIONS_KEY, 0, HIGHEST)
async def handle(ctx: Context, request: Any) -> Answer:
    if ctx.version >= 3 and not _names_its_software(request):
        return {"error_code": ErrorCode.invalid_request, "api_keys": (), "throttle_time": 0}
    return {**supported(ErrorCode.none), **(_features(ctx.version) if ctx.version >= _FEATURES_SINCE else {})}


def _features(version: int) -> Fields:
    return {
        "supported_features": [
            {"name": name, "min_version": lowest, "max_version": highest}
            for name, (lowest, highest) in FEATURES.items()
            if lowest > 0 or version >= _LEVEL_0_SINCE
        ],
        "finalized_features_epoch": FEATURES_EPOCH,
        "finalized_features": [
            {"name": name, "max_version_level": highest, "min_version_level": highest}
            for name, (_, highest) in FEATURES.items()
        ],
    }


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
