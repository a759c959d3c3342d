"""Assignments as clients encode them, and bytes that are no assignment."""

from __future__ import annotations

from random import Random

import pytest

from korvet.wire.assignment import assigned_partitions


def encoded(*topics: tuple[bytes, list[int]]) -> bytes:
    data = len(topics).to_bytes(4, "big")
    for name, partitions in topics:
        data += len(name).to_bytes(2, "big") + name + len(partitions).to_bytes(4, "big")
        data += b"".join(index.to_bytes(4, "big") for index in partitions)
    return data


@pytest.mark.parametrize("version", [b"\0\0", b"\0\1", b"\0\3", b"\0\x63"])
@pytest.mark.parametrize("rest", [b"", b"\xff\xff\xff\xff", b"\0\0\0\3abc"])
def test_assignment_of_any_version_is_read(version: bytes, rest: bytes) -> None:
    data = version + encoded((b"t", [0, 2]), ("ü".encode(), []), (b"u", [7])) + rest
    assert assigned_partitions(data) == [("t", 0), ("t", 2), ("u", 7)]
    assert assigned_partitions(version + encoded() + rest) == []


def test_bytes_that_are_no_assignment_have_no_partitions() -> None:
    whole = b"\0\1" + encoded((b"t", [0]), (b"u", [1]))
    for end in range(len(whole)):
        assert len(assigned_partitions(whole[:end])) <= 1
    assert assigned_partitions(b"\xff\xff" + whole[2:]) == []
    assert assigned_partitions(b"\0\1\x7f\xff\xff\xff" + b"\0" * 600) == []
    assert assigned_partitions(b"\0\1\0\0\0\1\0\1t\x7f\xff\xff\xff" + b"\0" * 40) == []
    assert assigned_partitions(b"\0\1\0\0\0\1\0\1\xff\0\0\0\1\0\0\0\0") == []


def test_any_bytes_are_read_to_an_end() -> None:
    random = Random(7)
    for _ in range(2000):
        data = random.choice([b"", b"\0\1\0\0\0\1\0\1t"]) + random.randbytes(random.randrange(60))
        assert len(assigned_partitions(data)) <= len(data) // 4
