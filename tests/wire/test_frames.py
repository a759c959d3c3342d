"""The frame splitter, with bytes alone."""

from __future__ import annotations

import gc
import weakref

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from korvet.errors import MalformedRequest
from korvet.wire.frames import MOST_TRUSTED_BYTES, SCRATCH_BYTES, TRUSTED_BYTES, FrameSplitter


def framed(*bodies: bytes) -> bytes:
    return b"".join(len(body).to_bytes(4, "big") + body for body in bodies)


MOST = 100 << 20


class Receiver:
    """A splitter that gets bytes as a transport gives them."""

    def __init__(self, max_frame_bytes: int = 1 << 20, scratch: memoryview | None = None) -> None:
        self.views: list[bytes | memoryview] = []
        self.splitter = FrameSplitter(self.views.append, max_frame_bytes=max_frame_bytes, scratch=scratch)

    @property
    def frames(self) -> list[bytes]:
        return [bytes(view) for view in self.views]

    def feed(self, data: bytes) -> None:
        while data:
            buffer = self.splitter.get_buffer()
            assert len(buffer) > 0
            size = min(len(buffer), len(data))
            buffer[:size] = data[:size]
            data = data[size:]
            self.splitter.received(size)


def test_frames_are_whole_at_every_split_point() -> None:
    stream = framed(b"a", b"", b"bcd" * 5, b"e")
    for first in range(len(stream) + 1):
        for second in range(first, len(stream) + 1):
            receiver = Receiver()
            for part in (stream[:first], stream[first:second], stream[second:]):
                receiver.feed(part)
            assert receiver.frames == [b"a", b"", b"bcd" * 5, b"e"]
            receiver.feed(framed(b"next"))
            assert receiver.frames[-1] == b"next"


@given(st.lists(st.integers(0, 3 * SCRATCH_BYTES), max_size=6), st.lists(st.integers(1, 2 * SCRATCH_BYTES), min_size=1))
@settings(max_examples=60, deadline=None)
def test_frames_of_any_size_come_out_as_they_went_in(sizes: list[int], cuts: list[int]) -> None:
    bodies = [bytes([number + 1]) * size for number, size in enumerate(sizes)]
    stream, receiver, at, turn = framed(*bodies), Receiver(), 0, 0
    while at < len(stream):
        size = cuts[turn % len(cuts)]
        receiver.feed(stream[at : at + size])
        at, turn = at + size, turn + 1
    assert receiver.frames == bodies
    assert all(memoryview(view).readonly for view in receiver.views)


def test_large_frame_is_received_into_its_own_buffer() -> None:
    body = bytes(range(256)) * 400
    receiver = Receiver()
    receiver.feed(framed(body)[:100])
    assert receiver.splitter.large is not None
    assert len(receiver.splitter.get_buffer()) == len(body) - 96
    receiver.feed(framed(body)[100:] + framed(b"next"))
    assert receiver.frames == [body, b"next"]
    assert receiver.splitter.large is None


def test_buffer_of_a_very_large_frame_grows_as_its_bytes_arrive() -> None:
    body = bytes(range(256)) * (5 * TRUSTED_BYTES // 256) + b"end"
    receiver = Receiver(max_frame_bytes=1 << 30)
    receiver.feed(framed(body)[:100])
    assert len(receiver.splitter.get_buffer()) == TRUSTED_BYTES - 96
    receiver.feed(framed(body)[100:] + framed(b"next"))
    assert receiver.frames == [body, b"next"]
    receiver.feed(framed(body)[:100])
    assert len(receiver.splitter.get_buffer()) == min(len(body), MOST_TRUSTED_BYTES) - 96


def test_discarded_splitter_does_not_hold_its_owner() -> None:
    class Owner:
        def __init__(self) -> None:
            self.splitter = FrameSplitter(self.take, max_frame_bytes=MOST)

        def take(self, frame: bytes | memoryview) -> None:
            raise AssertionError

    owner = Owner()
    gone = weakref.ref(owner)
    gc.disable()
    try:
        owner.splitter.discard()
        del owner
        assert gone() is None
    finally:
        gc.enable()


def test_earlier_frames_keep_their_bytes_when_the_scratch_buffer_is_reused() -> None:
    receiver = Receiver()
    receiver.feed(framed(b"first"))
    receiver.feed(framed(b"other" * 1000))
    assert receiver.frames[0] == b"first"


@pytest.mark.parametrize("size", [-1, -(2**31), 1001, 2**31 - 1])
def test_negative_and_oversize_frames_are_refused_before_they_are_buffered(size: int) -> None:
    receiver = Receiver(max_frame_bytes=1000)
    with pytest.raises(MalformedRequest, match=str(size)):
        receiver.feed(size.to_bytes(4, "big", signed=True))
    assert receiver.splitter.large is None


@pytest.mark.parametrize(
    ("begin", "protocol"),
    [
        (b"PROXY TCP4 ", "a PROXY protocol header"),
        (b"\r\n\r\n\x00\r\nQUIT\n", "a PROXY protocol header"),
        (b"\x16\x03\x01\x02\x00\x01", "TLS"),
        (b"GET / HTTP/1.1\r\n", "HTTP"),
    ],
)
def test_other_protocols_are_named(begin: bytes, protocol: str) -> None:
    with pytest.raises(MalformedRequest, match=f"are taken; this looks like {protocol}"):
        Receiver().feed(begin)


def test_frame_of_exactly_the_limit_is_taken() -> None:
    receiver = Receiver(max_frame_bytes=1000)
    receiver.feed(framed(bytes(1000)))
    assert receiver.frames == [bytes(1000)]


def test_frames_before_a_refused_one_are_delivered() -> None:
    receiver = Receiver()
    with pytest.raises(MalformedRequest):
        receiver.feed(framed(b"good") + b"\xff\xff\xff\xff")
    assert receiver.frames == [b"good"]


def test_refused_frame_in_a_full_buffer_leaves_room() -> None:
    def refuse(_frame: bytes | memoryview) -> None:
        raise MalformedRequest("no request")

    splitter = FrameSplitter(refuse, max_frame_bytes=MOST)
    splitter.get_buffer()[:] = framed(b"refused") + bytes(SCRATCH_BYTES - 11)
    with pytest.raises(MalformedRequest, match="no request"):
        splitter.received(SCRATCH_BYTES)
    assert len(splitter.get_buffer()) > 0


def test_connections_that_share_a_buffer_do_not_mix_their_frames() -> None:
    scratch = memoryview(bytearray(SCRATCH_BYTES))
    receivers = [Receiver(scratch=scratch) for _ in range(3)]
    streams = [framed(bytes([65 + number]) * 1000, b"", bytes([97 + number]) * 3000) for number in range(3)]
    for at in range(0, len(streams[0]), 7):
        for receiver, stream in zip(receivers, streams, strict=True):
            receiver.feed(stream[at : at + 7])
    for number, receiver in enumerate(receivers):
        assert receiver.frames == [bytes([65 + number]) * 1000, b"", bytes([97 + number]) * 3000]


def test_held_back_frames_come_on_request() -> None:
    receiver = Receiver()

    def take(frame: bytes | memoryview) -> bool:
        receiver.views.append(frame)
        return len(receiver.views) % 2 == 0

    receiver.splitter = FrameSplitter(take, max_frame_bytes=MOST)
    receiver.feed(framed(*[b"%d" % number for number in range(5)]) + b"\x00\x00")
    assert receiver.frames == [b"0", b"1"]
    receiver.splitter.go_on()
    assert receiver.frames == [b"0", b"1", b"2", b"3"]
    receiver.splitter.go_on()
    assert receiver.frames == [b"0", b"1", b"2", b"3", b"4"]
    receiver.feed(b"\x00\x01x")
    assert receiver.frames[-1] == b"x"
