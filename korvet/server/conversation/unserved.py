"""The log line for a request whose API or version is not served: it names the client and the served versions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, cast

from korvet.api import Api
from korvet.errors import MalformedRequest
from korvet.wire.codec import RequestHeader, decode_header, decode_request
from korvet.wire.requests import ApiVersionsRequest
from korvet.wire.schema import API_VERSIONS_KEY, is_known

MOST_BYTES = 1024
"""The bytes that a connection keeps of its ApiVersions request, which from version 3 names the client's software."""
_NAMES_SOFTWARE_SINCE = 3


class LogLine(NamedTuple):
    """A log line: its event and values."""

    event: str
    values: Mapping[str, str | int]


def log_line(header: RequestHeader, api: Api | None, api_versions: bytes) -> LogLine:
    """The log line for a request.

    :param api: the requested API; None if korvet does not have it.
    :param api_versions: the connection's ApiVersions request; empty if it sent none.
    """
    values: dict[str, str | int] = {"client_id": header.client_id or "", "software": _software(api_versions)}
    if api is None:
        return LogLine("client asks for an API that is not served", {**values, "api_key": header.api_key})
    age = "old" if header.version < api.lowest else "new"
    served = f"{api.lowest} to {api.highest}"
    return LogLine(f"client too {age}", {**values, "api": api.name, "version": header.version, "served": served})


def _software(frame: bytes) -> str:
    """The name and version of the client's software; ``not named`` if the client sent none."""
    try:
        header = decode_header(memoryview(frame)) if frame else None
        if header is None or header.version < _NAMES_SOFTWARE_SINCE or not is_known(API_VERSIONS_KEY, header.version):
            return "not named"
        request = cast(ApiVersionsRequest, decode_request(header, memoryview(frame)))
        return f"{request.client_software_name} {request.client_software_version}"
    except MalformedRequest:
        return "not named"
