"""Batches compressed anew, where a topic says by what and the producer took something else.

Records stay as they are, byte for byte: their offsets and times are told by differences to the header's. The header
keeps all but its length, its codec and its checksum.

Source: LogValidator.validateMessagesAndAssignOffsetsCompressed
"""

from __future__ import annotations

import struct
import zlib

import cramjam
from crc32c import crc32c

from korvet.wire.batch import CODEC_MASK, CRC_FROM, HEADER, HEADER_BYTES, LENGTH_FROM, Batch
from korvet.wire.compress import compressed
from korvet.wire.records import UndecodableRecords, decompressed


def recompressed(batch: Batch, data: bytes | memoryview, codec: int, level: int | None) -> tuple[Batch, bytes]:
    """The batch in another codec.

    :param level: of gzip, lz4 or zstd; None is the codec's own.
    :raises UndecodableRecords:
    """
    try:
        plain = decompressed(batch.attributes & CODEC_MASK, bytes(data[HEADER_BYTES:]))
    except (IndexError, ValueError, struct.error, zlib.error, cramjam.DecompressionError) as error:
        raise UndecodableRecords(f"records cannot be decoded: {error!r}") from error
    body = compressed(codec, plain, level)
    attributes = batch.attributes & ~CODEC_MASK | codec
    changed = batch._replace(length=HEADER_BYTES - LENGTH_FROM + len(body), attributes=attributes)
    whole = bytearray(HEADER.pack(*changed) + body)
    changed = changed._replace(crc=crc32c(memoryview(whole)[CRC_FROM:]))
    HEADER.pack_into(whole, 0, *changed)
    return changed, bytes(whole)
