"""Batches compressed anew, because the topic's codec is not the producer's.

Records stay as they are, byte for byte, for their offsets and times are relative to the header's. In the header only
the length, the codec and the checksum change.

Source: LogValidator.validateMessagesAndAssignOffsetsCompressed
"""

from __future__ import annotations

import struct
import zlib

import cramjam

from korvet.wire.batch import CODEC_MASK, HEADER_BYTES, Batch, sealed
from korvet.wire.compress import compressed
from korvet.wire.records import UndecodableRecords, decompressed


def recompressed(batch: Batch, data: bytes | memoryview, codec: int, level: int | None) -> tuple[Batch, bytes]:
    """The batch in another codec.

    :param level: Kafka's level of gzip, lz4 or zstd; None is the codec's default.
    :raises UndecodableRecords: if the batch's records cannot be decompressed.
    """
    try:
        plain = decompressed(batch.attributes & CODEC_MASK, bytes(data[HEADER_BYTES:]))
    except (IndexError, ValueError, struct.error, zlib.error, cramjam.DecompressionError) as error:
        raise UndecodableRecords(f"records cannot be decoded: {error!r}") from error
    body = compressed(codec, plain, level)
    attributes = batch.attributes & ~CODEC_MASK | codec
    return sealed(batch._replace(attributes=attributes), body)
