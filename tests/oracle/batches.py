"""Record batches (magic 2) written and read here, so that a script can also make wrong ones.

Source: DefaultRecordBatch and DefaultRecord of Apache Kafka.
"""

import gzip
import hashlib
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import crc32c

HEADER = struct.Struct(">qiibIhiqqqhii")  # base offset, length, leader epoch, magic, crc, then what the crc covers
CRC_COVERS_FROM = 21
CONTROL = 0x20


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """The content of a batch. `timestamp` and the ids may be a Var of the script; `damage` names one part to break.

    Damage: crc, magic, length, count (last offset delta not matching the records), truncated, base_offset.
    """

    count: int = 1
    value: bytes | None = b"value"
    key: bytes | None = None
    timestamp: Any = 0
    step_ms: int = 0
    producer_id: Any = -1
    producer_epoch: Any = -1
    sequence: int = -1
    attributes: int = 0
    damage: str = ""


def varint(value: int) -> bytes:
    """A zig-zag variable length integer."""
    value = (value << 1) ^ (value >> 63)
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _bytes(value: bytes | None) -> bytes:
    return varint(-1) if value is None else varint(len(value)) + value


def _record(batch: Batch, index: int) -> bytes:
    body = b"\0" + varint(index * batch.step_ms) + varint(index) + _bytes(batch.key) + _bytes(batch.value) + varint(0)
    return varint(len(body)) + body


def encode(batch: Batch) -> bytes:
    """The bytes of a batch whose Vars are already plain numbers."""
    records = b"".join(_record(batch, i) for i in range(batch.count))
    if batch.attributes & 7 == 1:
        records = gzip.compress(records, mtime=0)
    last_delta = batch.count - 1 + (3 if batch.damage == "count" else 0)
    last_time = batch.timestamp + (batch.count - 1) * batch.step_ms
    covered = struct.pack(
        ">hiqqqhii", batch.attributes, last_delta, batch.timestamp, last_time,
        batch.producer_id, batch.producer_epoch, batch.sequence, batch.count,
    ) + records  # fmt: skip
    crc = crc32c.crc32c(covered) ^ (1 if batch.damage == "crc" else 0)
    magic = 1 if batch.damage == "magic" else 2
    length = 9 + len(covered) - (20 if batch.damage == "length" else 0)
    base_offset = 7 if batch.damage == "base_offset" else 0
    data = struct.pack(">qiibI", base_offset, length, -1, magic, crc) + covered
    return data[:-5] if batch.damage == "truncated" else data


def describe(data: bytes | None) -> list[Mapping[str, Any]] | None:
    """The batches in a Fetch answer's records, one mapping for each. A cut last batch is only counted as `cut`.

    The checksum is right or wrong here instead of a number, because it covers the producer id.
    """
    if data is None:
        return None
    batches: list[Mapping[str, Any]] = []
    offset = 0
    while len(data) - offset >= HEADER.size:
        fields = HEADER.unpack_from(data, offset)
        end = offset + 12 + fields[1]
        if fields[1] < HEADER.size - 12 or end > len(data):
            break
        names = ("base_offset", "length", "leader_epoch", "magic", "crc", "attributes", "last_offset_delta",
                 "first_time", "max_time", "producer_id", "producer_epoch", "base_sequence", "count")  # fmt: skip
        batch: dict[str, Any] = dict(zip(names, fields, strict=True))
        batch["crc"] = "right" if crc32c.crc32c(data[offset + CRC_COVERS_FROM : end]) == batch["crc"] else "wrong"
        if batch["attributes"] & CONTROL:
            batch["first_time"] = batch["max_time"] = "the broker's clock"
        batch["body"] = hashlib.sha256(data[offset + HEADER.size : end]).hexdigest()[:16]
        batches.append(batch)
        offset = end
    if offset < len(data):
        batches.append({"cut": True})
    return batches
