"""What clients push of their metrics: decoded in a front-end process, and written to its supervisor, which tells it.

A line is ``pushed`` and a JSON object, of which `korvet.metrics.clients` keeps the newest of each client. A supervisor
that does not read gets none: metrics may be lost, and requests wait for nothing.
"""

from __future__ import annotations

import asyncio
import json
import struct
import zlib
from typing import Final

import anyio
import anyio.to_thread
import cramjam
from kio.schema.errors import ErrorCode

from korvet.api.shared.telemetry import Push
from korvet.metrics.otlp import decode
from korvet.wire.records import TooLong, decompressed

PREFIX: Final = b"pushed "
MOST_UNREAD_BYTES: Final = 4 << 20
"""The lines that a supervisor has not read yet, beyond which it gets no further push."""
MOST_LINE_BYTES: Final = 8 << 20
"""The longest line of a push: less than a supervisor reads, which hears no more of a worker with a longer one."""
_DECODERS: Final = 1


class Pushes:
    """The receiver of a process; it has no supervisor to write to until `send_to`."""

    def __init__(self) -> None:
        self._out: asyncio.WriteTransport | None = None
        self._decoders = anyio.CapacityLimiter(_DECODERS)

    def send_to(self, out: asyncio.WriteTransport) -> None:
        """Have pushes written there."""
        self._out = out

    async def take(self, push: Push, most_bytes: int) -> ErrorCode:
        """Take a push: TELEMETRY_TOO_LARGE if it is more than so many bytes, INVALID_RECORD if it is no OTLP."""
        try:
            line = await anyio.to_thread.run_sync(_line, push, most_bytes, limiter=self._decoders)
        except TooLong:
            return ErrorCode.telemetry_too_large
        except (ValueError, struct.error, zlib.error, cramjam.DecompressionError, IndexError):
            return ErrorCode.invalid_record
        if len(line) > MOST_LINE_BYTES:
            return ErrorCode.telemetry_too_large
        if self._out is not None and self._out.get_write_buffer_size() < MOST_UNREAD_BYTES:
            self._out.write(line)
        return ErrorCode.none


def _line(push: Push, most_bytes: int) -> bytes:
    decoded = decode(decompressed(push.codec, push.data, most_bytes))
    told = {
        "namespace": push.namespace,
        # What the broker knows of the client counts, whatever the client says of itself.
        "client": {**decoded.attributes, **push.client._asdict(), "principal": push.principal},
        "interval_ms": push.interval_ms,
        "series": decoded.series,
        "dropped": decoded.dropped,
    }
    return PREFIX + json.dumps(told, separators=(",", ":")).encode() + b"\n"
