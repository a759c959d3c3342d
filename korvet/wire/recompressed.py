"""Batches recompressed with the topic's codec.

Records stay byte for byte, because their offsets and times are relative to the header's. In the header only the length,
the codec and the checksum change; unknown attributes go.

Source: LogValidator.validateMessagesAndAssignOffsetsCompressed
"""

from __future__ import annotations

from typing import Final

from korvet.wire.batch import CODEC_MASK, HEADER_BYTES, LOG_APPEND_TIME, TRANSACTIONAL, Batch, sealed
from korvet.wire.compress import compressed
from korvet.wire.records import decompressed

_KEPT: Final = LOG_APPEND_TIME | TRANSACTIONAL


def recompressed(batch: Batch, data: bytes | memoryview, codec: int, level: int | None) -> tuple[Batch, bytes]:
    """The batch in another codec.

    :param level: Kafka's level of gzip, lz4 or zstd; None is the codec's default.
    :raises UndecodableRecords: if the batch's records cannot be decompressed.
    """
    plain = decompressed(batch.attributes & CODEC_MASK, bytes(data[HEADER_BYTES:]))
    body = compressed(codec, plain, level)
    return sealed(batch._replace(attributes=batch.attributes & _KEPT | codec), body)
