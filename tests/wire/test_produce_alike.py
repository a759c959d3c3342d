"""Small Produce requests that are like one before are read as kio reads them."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from korvet.errors import MalformedRequest
from korvet.wire.codec import decode_header, decode_request
from korvet.wire.produce_alike import Alikes
from korvet.wire.produce_request import ProduceRequest
from tests.wire.test_produce_request import REQUESTS, VERSIONS, framed, plain


def one(records: bytes, name: str = "t", index: int = 3, acks: int = -1) -> dict[str, Any]:
    """A request for one partition."""
    part = {"index": index, "records": records}
    return {"acks": acks, "topic_data": [{"name": name, "topic_id": None, "partition_data": [part]}]}


def read(alikes: Alikes, frame: memoryview) -> Any:
    return alikes.decode(decode_header(frame), bytes(frame))


def meant(request: Any, version: int) -> Any:
    """What the handler looks at; kio lets arrays be null."""
    try:
        return plain(request, version)
    except TypeError:
        return "an array is null"


def by_kio(frame: memoryview) -> Any:
    return decode_request(decode_header(frame), frame)


@pytest.mark.parametrize("version", [3, 8, 9, 13])
@settings(max_examples=40)
@given(requests=st.lists(st.one_of(REQUESTS, st.builds(one, st.binary(max_size=300))), max_size=6))
def test_requests_are_read_as_by_kio_whatever_came_before(version: int, requests: list[Any]) -> None:
    alikes = Alikes(version)
    for values in (*requests, *requests):
        frame = framed(version, values)
        assert plain(read(alikes, frame), version) == plain(by_kio(frame), version)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("size", [1, 126, 127, 128, 16_382, 16_383, 16_384, 30_000])
def test_the_second_of_a_kind_is_read_without_copies(version: int, size: int) -> None:
    alikes = Alikes(version)
    first, second = framed(version, one(b"first")), framed(version, one(bytes(size)))
    assert not isinstance(read(alikes, first), ProduceRequest)
    request = read(alikes, second)
    assert isinstance(request, ProduceRequest)
    assert isinstance(request.topic_data[0].partition_data[0].records, memoryview)
    assert plain(request, version) == plain(by_kio(second), version)


@pytest.mark.parametrize("version", VERSIONS)
def test_partitions_in_turn_are_all_known(version: int) -> None:
    alikes = Alikes(version)
    frames = [framed(version, one(b"records", name, index)) for name in ("t", "longer") for index in range(100)]
    for frame in frames:
        read(alikes, frame)
    assert all(isinstance(read(alikes, frame), ProduceRequest) for frame in frames)
    for index in range(1000):
        frame = framed(version, one(b"records", "n" * (index % 9), index))
        assert plain(read(alikes, frame), version) == plain(by_kio(frame), version)
    assert alikes.heads <= 256


@pytest.mark.parametrize("version", [3, 8, 9, 13])
@settings(max_examples=40)
@given(cut=st.integers(1, 40), more=st.binary(max_size=5), spoilt=st.integers(0, 60), byte=st.integers(0, 255))
def test_what_does_not_fit_is_judged_by_kio(version: int, cut: int, more: bytes, spoilt: int, byte: int) -> None:
    alikes = Alikes(version)
    frame = framed(version, one(b"x" * 30))
    read(alikes, frame)
    other = bytearray(frame)
    at = decode_header(frame).body_at + spoilt
    if at < len(other):
        other[at] = byte
    for changed in (bytes(frame)[:-cut] + more, bytes(frame) + more, bytes(other)):
        try:
            expected = meant(by_kio(memoryview(changed)), version)
        except MalformedRequest:
            with pytest.raises(MalformedRequest):
                read(alikes, memoryview(changed))
        else:
            assert meant(read(alikes, memoryview(changed)), version) == expected
