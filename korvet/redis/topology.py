"""The hash slots of a cluster; `korvet.redis.discovery` finds their owners."""

from __future__ import annotations

from binascii import crc_hqx
from typing import Final

import hiredis

from korvet.name_cache import NameCache

SLOTS = 16384
_KEYS_KEPT: Final = 65536


def _slot_of(key: str) -> int:
    _, _, rest = key.partition("{")
    tag, closed, _ = rest.partition("}")
    return crc_hqx((tag if tag and closed else key).encode(), 0) % SLOTS


slot_of: Final = NameCache(_slot_of, _KEYS_KEPT).__getitem__
"""The hash slot of a key, by its hash tag: the text between the first ``{`` and the next ``}``, if not empty.

Source: keyHashSlot in Redis's cluster.c
"""


def key_of(command: bytes) -> str:
    """The routing key of a packed command: a function's first key, else the first argument."""
    reader = hiredis.Reader()
    reader.feed(command)
    words = reader.gets()
    assert isinstance(words, list)
    at = 3 if words[0].startswith(b"FCALL") else 1
    return bytes(words[at]).decode() if len(words) > at else ""
