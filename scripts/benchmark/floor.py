"""The floor: the least that a front-end in Python can do for a request, to compare korvet's own with it.

``python -m scripts.benchmark.floor PORT DIRECTORY`` serves one log and one group from an embedded server. It reads
no more of a request than it needs, checks nothing, makes one call, and gives a fixed answer. It knows the versions of
`scripts.benchmark.calls` alone.
"""

import asyncio
import signal
import sys
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path
from struct import pack
from typing import Any, Final, cast

import hiredis
import uvloop

from korvet.server.processes.embedded import embedded_server

LIBRARY: Final = """#!lua name=floor
redis.register_function('floor_beat', function(keys, args)
  redis.call('HSET', keys[1], args[1], redis.call('TIME')[1])
  return 0
end)
redis.register_function('floor_append', function(keys, args)
  local base = tonumber(redis.call('HGET', keys[2], 'end') or 0)
  local id = string.format('%d', base + args[2])
  redis.call('XADD', keys[1], id .. '-0', 'b', args[1])
  redis.call('HSET', keys[2], 'end', id)
  return base
end)
"""
PRODUCE, FETCH, COMMIT, HEARTBEAT = 0, 1, 8, 12  # API keys
_NAME: Final = 29  # where the topic's name is in a Produce, with its length plus one; the client's name has 6 bytes
_ROW: Final = b"\x02\x02t\x02"  # one topic "t" with one partition


class Redis(asyncio.Protocol):
    """One connection. The commands of a turn of the loop leave in one write."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._reader = hiredis.Reader()
        self._waiting: deque[Callable[[Any], None]] = deque()
        self._out: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass

    def call(self, then: Callable[[Any], None], *command: str | bytes) -> None:
        if not self._out:
            self._loop.call_soon(self._flush)
        self._out.append(hiredis.pack_command(command))  # type: ignore[arg-type]
        self._waiting.append(then)

    def _flush(self) -> None:
        out, self._out = self._out, []
        self._transport.writelines(out)

    def data_received(self, data: bytes) -> None:
        self._reader.feed(data)
        while (reply := self._reader.gets()) is not False:
            self._waiting.popleft()(reply)


class Client(asyncio.Protocol):
    """One client. ``end`` is the log's, and ``parked`` answers the Fetch that waits for the next batch."""

    redis: Redis
    end = 0
    parked: Callable[[int, bytes], None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._rest = b""

    def data_received(self, data: bytes) -> None:
        data = self._rest + data
        while len(data) >= 4 and len(data) >= (size := 4 + int.from_bytes(data[:4])):
            frame, data = data[:size], data[size:]
            {PRODUCE: self._produce, FETCH: self._fetch, COMMIT: self._beat, HEARTBEAT: self._beat}[frame[5]](frame)
        self._rest = data

    def _answer(self, frame: bytes, *body: bytes | memoryview) -> None:
        self._transport.writelines([pack(">i4sx", 5 + sum(map(len, body)), frame[8:12]), *body])

    def _beat(self, frame: bytes) -> None:
        answer = pack(">ihx", 0, 0) if frame[5] == HEARTBEAT else pack(">i4sihxxx", 0, _ROW, 0, 0)
        self.redis.call(lambda _: self._answer(frame, answer), "FCALL", "floor_beat", "1", "{floor}:group", "member")

    def _produce(self, frame: bytes) -> None:
        at = _NAME + frame[_NAME] + 5
        while frame[at] & 0x80:
            at += 1
        batch = frame[at + 1 : -3]
        records = int.from_bytes(batch[57:61])

        def appended(base: int) -> None:
            Client.end = base + records
            self._answer(frame, pack(">4sihqqqBxxxix", _ROW, 0, 0, base, -1, 0, 1, 0))
            if (parked := Client.parked) is not None:
                Client.parked = None
                parked(Client.end, batch)

        self.redis.call(appended, "FCALL", "floor_append", "2", "{floor}:log", "{floor}:end", batch, str(records))

    def _fetch(self, frame: bytes) -> None:
        offset = int.from_bytes(frame[-29:-21])

        def found(end: int, batch: bytes) -> None:
            head = pack(">ihi4sihqqqxi", 0, 0, 0, _ROW, 0, 0, Client.end, Client.end, 0, -1)
            base = (end - int.from_bytes(batch[57:61])).to_bytes(8)
            self._answer(frame, head, _varint(len(batch) + 1), base, memoryview(batch)[8:], bytes(3))

        if offset >= Client.end:
            Client.parked = found
        else:
            where = f"{offset + 1}-0"
            self.redis.call(partial(_first, found), "XRANGE", "{floor}:log", where, "+", "COUNT", "1")


def _first(found: Callable[[int, bytes], None], rows: list[Any]) -> None:
    found(int(rows[0][0].partition(b"-")[0]), rows[0][1][1])


def _varint(number: int) -> bytes:
    return bytes([number & 0x7F | 0x80]) + _varint(number >> 7) if number > 0x7F else bytes([number])


async def serve(port: int, directory: Path) -> None:
    """Serve until the process ends."""
    loop = asyncio.get_running_loop()
    async with embedded_server(directory):
        _, Client.redis = await loop.create_unix_connection(Redis, str(directory / "valkey.sock"))
        Client.redis.call(_nothing, "FUNCTION", "LOAD", LIBRARY)
        await loop.create_server(Client, "127.0.0.1", port)
        sys.stdout.write("the floor is ready on its port\n")
        sys.stdout.flush()
        stopped = asyncio.Event()
        loop.add_signal_handler(signal.SIGTERM, stopped.set)
        await stopped.wait()


def _nothing(_reply: object) -> None:
    """A reply that decides nothing."""


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1]), Path(sys.argv[2])))
