"""Metrics that clients push: a front-end process decodes them and writes them to its supervisor, which exports them.

A line is ``pushed`` and a JSON object; `korvet.metrics.clients` keeps the newest of each client. While the supervisor
does not read, none is written: metrics may be lost, and no request waits.
"""

from __future__ import annotations

import asyncio
import json
import struct
from functools import partial
from typing import Final

from kio.schema.errors import ErrorCode

from korvet.api.shared.telemetry import Push
from korvet.metrics.otlp import decode
from korvet.store.threads import FairThreads
from korvet.wire.records import TooLong, UndecodableRecords, decompressed

PREFIX: Final = b"pushed "
MOST_UNREAD_BYTES: Final = 4 << 20
"""The bytes of lines that the supervisor has not read yet, beyond which pushes are dropped."""
MOST_LINE_BYTES: Final = 8 << 20
"""The longest line of a push: shorter than the longest that a supervisor can read."""
_DECODERS: Final = 2
_MOST_DECODERS_OF_ONE: Final = 1


class TelemetryReceiver:
    """The receiver of a process; it drops pushes until `send_to`."""

    def __init__(self) -> None:
        self._out: asyncio.WriteTransport | None = None
        self._decoders = FairThreads(_DECODERS, _MOST_DECODERS_OF_ONE)

    def send_to(self, out: asyncio.WriteTransport) -> None:
        """Write pushes to this transport from now on."""
        self._out = out

    async def receive(self, push: Push, most_bytes: int) -> ErrorCode:
        """Take a push; TELEMETRY_TOO_LARGE beyond so many bytes, INVALID_RECORD if it is no OTLP."""
        line = await self._decoders.run(push.namespace, partial(_line_or_code, push, most_bytes))
        if isinstance(line, ErrorCode):
            return line
        if len(line) > MOST_LINE_BYTES:
            return ErrorCode.telemetry_too_large
        if self._out is not None and self._out.get_write_buffer_size() < MOST_UNREAD_BYTES:
            self._out.write(line)
        return ErrorCode.none


def _line_or_code(push: Push, most_bytes: int) -> bytes | ErrorCode:
    try:
        return _line(push, most_bytes)
    except TooLong:
        return ErrorCode.telemetry_too_large
    except (ValueError, struct.error, IndexError, UndecodableRecords):
        return ErrorCode.invalid_record


def _line(push: Push, most_bytes: int) -> bytes:
    decoded = decode(decompressed(push.codec, push.data, most_bytes))
    message = {
        "namespace": push.namespace,
        # The broker's labels of the client replace the client's own.
        "client": {**decoded.attributes, **push.client._asdict(), "principal": push.principal},
        "interval_ms": push.interval_ms,
        "series": decoded.series,
        "dropped": decoded.dropped,
    }
    return PREFIX + json.dumps(message, separators=(",", ":")).encode() + b"\n"
