"""Raw requests over blocking connections, without Kafka's schemas: frames go out as they are, answers come in whole."""

import socket
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TypedDict


class Sent(TypedDict):
    """A request of one connection: its frame as hexadecimal digits, the place of an offset in it or 0, and how many of
    the first bytes of its answers never change."""

    frame: str
    offset_at: int
    same: int


def ask(wire: socket.socket, frame: bytes) -> bytes:
    """The answer to a frame, without its size."""
    wire.sendall(frame)
    return answer(wire)


def answer(wire: socket.socket) -> bytes:
    """The next answer, without its size."""
    return _exactly(wire, int.from_bytes(_exactly(wire, 4)))


def _exactly(wire: socket.socket, size: int) -> bytes:
    parts = bytearray()
    while len(parts) < size:
        part = wire.recv(size - len(parts))
        if not part:
            raise RuntimeError("the broker closed the connection")
        parts += part
    return bytes(parts)


@contextmanager
def connected(address: str) -> Iterator[socket.socket]:
    """A connection to a broker for the time of the block."""
    host, port = address.rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=60) as wire:
        wire.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        yield wire


def play(address: str, requests: Sequence[Sent], turns: int, first: int, step: int, steps: int) -> dict[str, float]:
    """Send all requests, each over a connection of its own, and read all answers; so many turns. No clock decides.

    :param first: the offset in the requests that have one; it grows by ``step`` in each turn, and begins
        again after so many ``steps``.
    :raises RuntimeError: an answer differs from the first one to this request in its size or its first bytes.
    """
    with ExitStack() as stack:
        wires = [stack.enter_context(connected(address)) for _ in requests]
        frames = [bytearray.fromhex(each["frame"]) for each in requests]
        expected: list[bytes] = []
        for turn in range(turns):
            for wire, frame, each in zip(wires, frames, requests, strict=True):
                if at := each["offset_at"]:
                    frame[at : at + 8] = (first + step * (turn % steps)).to_bytes(8)
                wire.sendall(frame)
            answers = [answer(wire) for wire in wires]
            expected = expected or answers
            for each, one, other in zip(requests, expected, answers, strict=True):
                if len(one) != len(other) or one[: each["same"]] != other[: each["same"]]:
                    raise RuntimeError(f"turn {turn} was answered {other[:100]!r} and the first one {one[:100]!r}")
    return {}
