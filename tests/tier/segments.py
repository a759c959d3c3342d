"""Batches and segments for the tests of the tier."""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence
from uuid import UUID

from crc32c import crc32c

from korvet.tier.manifest import Member
from korvet.tier.segment import Aborted, Footer, Writer
from korvet.wire.batch import HEADER

TOPIC_ID = UUID(int=0x1234)
NAME = "01JDXYZ0000000000000000000"


def batch(
    base: int, records: int = 1, size: int = 0, *, epoch: int = 0, timestamp: int = 0, producer: int = -1
) -> bytes:
    """A batch as a Fetch serves it, with ``size`` bytes that stand for its records."""
    body = random.Random(base).randbytes(size)
    fields = 0, 0, records - 1, timestamp, timestamp, producer, -1, -1, records
    packed = bytearray(HEADER.pack(base, HEADER.size - 12 + size, epoch, 2, *fields) + body)
    packed[17:21] = struct.pack(">I", crc32c(packed[21:]))
    return bytes(packed)


def written(
    batches: Sequence[bytes], first: int = 0, *, aborted: Sequence[Aborted] = (), after: Footer | None = None
) -> tuple[bytes, Footer]:
    """The object of a segment, and its footer."""
    before = {"chain": after.chain, "max_producer_id": after.max_producer_id} if after else {}
    writer = Writer(TOPIC_ID, 3, first, **before)
    for one in batches:
        writer.add([one[:20], memoryview(one)[20:]], HEADER.unpack_from(one)[8])
    parts, footer = writer.finish(aborted)
    return b"".join(parts), footer


def member(footer: Footer, name: str = NAME) -> Member:
    """As Redis lists the first segment of a log."""
    sizes = footer.size_bytes, footer.footer_bytes, footer.max_timestamp, footer.max_timestamp, footer.size_bytes
    return Member("segment", footer.first_offset, footer.next_offset, *sizes, footer.crc, name)
