"""Compressed records, by the codecs of a batch's attributes, in the forms that every Kafka client reads.

Kafka reads LZ4 frames only if their blocks do not depend on each other. It writes Snappy in the chunks of xerial's
snappy-java. Source: Lz4Compression, Lz4BlockOutputStream, SnappyOutputStream
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator

import cramjam

from korvet.wire.batch import GZIP, LZ4, SNAPPY, ZSTD

_BLOCK_BYTES = 64 << 10
_LZ4_HEADER = bytes.fromhex("04224d18604082")
"""The head of an LZ4 frame: version 1, independent blocks of at most 64 KiB, no checksum except the header's."""
_LZ4_PLAIN = 1 << 31
_LZ4_SIZE = struct.Struct("<I")
LZ4_FAST_LEVEL = 9
"""Kafka's default level, which selects the fast compressor. All other levels select the thorough one (LZ4 HC)."""
_LZ4_LEAST_LEVEL, _LZ4_MOST_LEVEL = 3, 12
"""The library's range of levels for LZ4 HC. Levels beyond it compress no better in Kafka either."""
_XERIAL_HEADER = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)
_XERIAL_CHUNK_BYTES = 32 << 10
_SIZE = struct.Struct(">I")
_GZIP_WINDOW = 31


def compressed(codec: int, data: bytes, level: int | None = None) -> bytes:
    """The records of a batch in the codec of its attributes; codec 0 is none.

    :param level: Kafka's level of gzip, lz4 or zstd; None is the codec's default.
    """
    if codec == GZIP:
        packer = zlib.compressobj(-1 if level is None else level, wbits=_GZIP_WINDOW)
        return packer.compress(data) + packer.flush()
    if codec == SNAPPY:
        return _XERIAL_HEADER + b"".join(_snappy_chunks(data))
    if codec == LZ4:
        return _lz4_frame(data, LZ4_FAST_LEVEL if level is None else level)
    if codec == ZSTD:
        return bytes(cramjam.zstd.compress(data, level))
    return data


def _snappy_chunks(data: bytes) -> Iterator[bytes]:
    for at in range(0, len(data), _XERIAL_CHUNK_BYTES):
        chunk = bytes(cramjam.snappy.compress_raw(data[at : at + _XERIAL_CHUNK_BYTES]))
        yield _SIZE.pack(len(chunk))
        yield chunk


def _lz4_frame(data: bytes, level: int) -> bytes:
    if level == LZ4_FAST_LEVEL:
        return _LZ4_HEADER + b"".join(_lz4_blocks(data)) + _LZ4_SIZE.pack(0)
    level = min(max(level, _LZ4_LEAST_LEVEL), _LZ4_MOST_LEVEL)
    packer = cramjam.lz4.Compressor(level=level, content_checksum=False, block_linked=False)
    packer.compress(data)
    return bytes(packer.finish())


def _lz4_blocks(data: bytes) -> Iterator[bytes]:
    for at in range(0, len(data), _BLOCK_BYTES):
        plain = data[at : at + _BLOCK_BYTES]
        block = bytes(cramjam.lz4.compress_block(plain, store_size=False))
        if len(block) < len(plain):
            yield _LZ4_SIZE.pack(len(block))
            yield block
        else:
            yield _LZ4_SIZE.pack(len(plain) | _LZ4_PLAIN)
            yield plain
