"""The hash slots of a cluster. Who owns them is known to `korvet.redis.discovery`."""

from __future__ import annotations

from binascii import crc_hqx
from functools import lru_cache

import hiredis

SLOTS = 16384


@lru_cache(maxsize=65536)
def slot_of(key: str) -> int:
    """The hash slot of a key, by its hash tag: what lies between the first ``{`` and the next ``}``, if anything does.

    Source: keyHashSlot in Redis's cluster.c
    """
    _, _, rest = key.partition("{")
    tag, closed, _ = rest.partition("}")
    return crc_hqx((tag if tag and closed else key).encode(), 0) % SLOTS


def key_of(command: bytes) -> str:
    """The key by which a packed command was routed: a function's first key, else the first argument."""
    reader = hiredis.Reader()
    reader.feed(command)
    words = reader.gets()
    assert isinstance(words, list)
    at = 3 if words[0].startswith(b"FCALL") else 1
    return bytes(words[at]).decode() if len(words) > at else ""
