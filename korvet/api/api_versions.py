"""ApiVersions (key 18), versions 0 to 5: the APIs that this front-end serves, built from the registry.

- 1: throttle_time_ms   - 3: flexible, the client's software (KIP-511), features
- 4: features whose lowest version is 0 (KIP-584's fix, KAFKA-17011)
- 5: the cluster and the node that the client means (KIP-1242)

The features are those of this version of korvet, the same at every front-end. Their epoch counts the versions of korvet
that changed them. A software name that breaks Kafka's rule is INVALID_REQUEST.

A client that means another cluster gets REBOOTSTRAP_REQUIRED. Every front-end stands for every node of its cluster, so
the node is not looked at. Before its login a client has no cluster yet, as in Kafka.

Source: ApiVersionsRequest, ApiVersionsResponse, SimpleApiVersionManager, KafkaApis.handleApiVersionsRequest, KIP-35.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Final

from kio.schema.errors import ErrorCode

from korvet.api import Answer, api, registry
from korvet.api.shared import needs
from korvet.api.shared.context import Context
from korvet.api.shared.telemetry import MOST_SOFTWARE_CHARACTERS, Peer
from korvet.wire import requests
from korvet.wire.schema import API_VERSIONS_KEY
from korvet.wire.writer import Fields

HIGHEST = 5
FEATURES: Final = {
    "group.version": (0, 1), "metadata.version": (7, 27), "share.version": (0, 2), "transaction.version": (0, 2)
}  # fmt: skip
"""The lowest and the highest level that korvet supports; the highest one is finalized.

Tools take Kafka's version from metadata.version: these are Kafka 4.1's levels (MetadataVersion.IBP_4_1_IV1).
"""
FEATURES_EPOCH: Final = 5
_FEATURES_SINCE: Final = 3
_SOFTWARE_SINCE: Final = 3
_TELEMETRY: Final = (71, 72)
"""The answer lists these APIs only if pushed metrics have a receiver. They are served in any case."""
_LEVEL_0_SINCE: Final = 4
_NO_NODE: Final = -1
_DATING: Final = ("apache-kafka-java", "korvet")
_RDKAFKA: Final = "rdkafka"
_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9.-]*[a-zA-Z0-9])?")


@api(API_VERSIONS_KEY, 0, HIGHEST, needs=needs.nothing)
async def handle(ctx: Context, request: requests.ApiVersionsRequest) -> Answer:
    if (code := _refusal(ctx, request)) is not ErrorCode.none:
        if ctx.login is not None:
            ctx.login.asks_versions_again()
        return {"error_code": code, "api_keys": (), "throttle_time": 0}
    if ctx.version >= _SOFTWARE_SINCE:
        ctx.peer.software_name = request.client_software_name[:MOST_SOFTWARE_CHARACTERS]
        ctx.peer.software_version = request.client_software_version[:MOST_SOFTWARE_CHARACTERS]
        ctx.peer.dates_batches = _dates_batches(ctx.peer)
    return _shown(ctx.version, has_telemetry=ctx.frontend.telemetry.receiver is not None)


def _refusal(ctx: Context, request: requests.ApiVersionsRequest) -> ErrorCode:
    if ctx.version >= _SOFTWARE_SINCE and not _names_its_software(request):
        return ErrorCode.invalid_request
    if (request.cluster_id is None) != (request.node_id == _NO_NODE):
        return ErrorCode.invalid_request
    is_logged_in = ctx.login is None or ctx.login.principal is not None
    cluster_id = ctx.frontend.catalog.cluster_id
    if request.cluster_id is None or not is_logged_in or request.cluster_id == cluster_id or not cluster_id:
        return ErrorCode.none
    return ErrorCode.rebootstrap_required


def _dates_batches(peer: Peer) -> bool:
    """Kafka's own producer does (MemoryRecordsBuilder.recordWritten), korvet's replay, and librdkafka
    (rd_kafka_msgset_writer_write_msgq), which other languages' clients name in their version."""
    return peer.software_name in _DATING or _RDKAFKA in f"{peer.software_name} {peer.software_version}"


@cache
def _shown(version: int, *, has_telemetry: bool) -> Fields:
    """The answer, which is the same for every connection."""
    features = _features(version) if version >= _FEATURES_SINCE else {}
    answer = {**supported(ErrorCode.none), **features}
    if not has_telemetry:
        answer["api_keys"] = [one for one in answer["api_keys"] if one["api_key"] not in _TELEMETRY]
    return answer


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
    """Every API with its advertised versions; with UNSUPPORTED_VERSION the v0 answer to an unknown version."""
    shown = tuple(
        {"api_key": api.key, "min_version": api.advertised_lowest, "max_version": api.highest}
        for _, api in sorted(registry().items())
    )
    if error_code is ErrorCode.unsupported_version:
        # As in Kafka: only this API itself, because the client repeats the request and then gets them all.
        shown = tuple(entry for entry in shown if entry["api_key"] == API_VERSIONS_KEY)
    return {
        "error_code": error_code,
        "api_keys": shown,
        "throttle_time": 0,
        "finalized_features_epoch": -1,
        "zk_migration_ready": False,
    }


def _names_its_software(request: requests.ApiVersionsRequest) -> bool:
    return all(_SOFTWARE.fullmatch(name) for name in (request.client_software_name, request.client_software_version))
