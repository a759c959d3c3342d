"""What clients push of their metrics: decoded in a front-end process, and written to its supervisor, which tells it.

A line is ``pushed`` and a JSON object, of which `korvet.metrics.clients` keeps the newest of each client. A supervisor
that does not read gets none: metrics may be lost, and requests wait for nothing.
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
"""The lines that a supervisor has not read yet, beyond which it gets no further push."""
MOST_LINE_BYTES: Final = 8 << 20
"""The longest line of a push: less than a supervisor reads, which hears no more of a worker with a longer one."""
_DECODERS: Final = 2
_MOST_DECODERS_OF_ONE: Final = 1


class TelemetryReceiver:
    """The receiver of a process; it has no supervisor to write to until `send_to`."""

    def __init__(self) -> None:
        self._out: asyncio.WriteTransport | None = None
        self._decoders = FairThreads(_DECODERS, _MOST_DECODERS_OF_ONE)

    def send_to(self, out: asyncio.WriteTransport) -> None:
        """Have pushes written there."""
        self._out = out

    async def receive(self, push: Push, most_bytes: int) -> ErrorCode:
        """Take a push: TELEMETRY_TOO_LARGE if it is more than so many bytes, INVALID_RECORD if it is no OTLP."""
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
    told = {
        "namespace": push.namespace,
        # What the broker knows of the client counts, whatever the client says of itself.
        "client": {**decoded.attributes, **push.client._asdict(), "principal": push.principal},
        "interval_ms": push.interval_ms,
        "series": decoded.series,
        "dropped": decoded.dropped,
    }
    return PREFIX + json.dumps(told, separators=(",", ":")).encode() + b"\n"
