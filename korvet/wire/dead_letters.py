"""Dead letters: copies of records that a share group gave up, with headers that say which and why (KIP-1191).

A copy has the key, the value and the headers of its record, then those of `headers`. Of a record that is gone, or that
is not to be copied, it has the latter alone.

Source: ShareGroupDLQRecordHelper
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from korvet.wire.batch import Batch, new_batch
from korvet.wire.contents import Content
from korvet.wire.records import varint

CAUSES: Final = {
    b"rejected": b"Offset rejected by client.",
    b"limit": b"Offset delivery count exceeded the threshold.",
}
"""Kafka's messages, by the causes of `korvet_share_dead_letters`. Source: ShareGroupDLQManager"""
_PREFIX: Final = b"__dlq.errors."
_MOST: Final = (1 << 63) - 1
_TOPIC: Final = re.compile(r"[a-zA-Z0-9._-]{1,249}")


class Origin(NamedTuple):
    """The record of which there is a copy."""

    topic: str
    partition: int
    offset: int


def headers(topic: str, partition: int, offset: int, group_id: str, deliveries: int, cause: bytes) -> Mapping[str, str]:
    """The headers of a copy.

    :param cause: one of `CAUSES`.
    """
    return {
        "__dlq.errors.topic": topic,
        "__dlq.errors.partition": str(partition),
        "__dlq.errors.offset": str(offset),
        "__dlq.errors.group": group_id,
        "__dlq.errors.delivery.count": str(deliveries),
        "__dlq.errors.message": CAUSES[cause].decode(),
    }


def copy_of(content: Content, added: Mapping[str, str], timestamp_ms: int) -> tuple[Batch, bytes]:
    """A batch with one copy, as header and bytes; its base offset is 0."""
    texts: Sequence[bytes] = [text.encode() for header in added.items() for text in header]
    body = b"".join(
        [
            b"\0\0\0",
            content.key_and_value,
            varint(content.header_count + len(added)),
            content.headers,
            *(part for text in texts for part in (varint(len(text)), text)),
        ]
    )
    return new_batch(varint(len(body)) + body, timestamp_ms, timestamp_ms)


def origin_of(
    copied: Sequence[tuple[bytes, bytes | None]],
) -> tuple[Origin, Sequence[tuple[bytes, bytes | None]]] | None:
    """The record that a copy is of, and its headers, by the headers of the copy; None if these are of no copy.

    The record may be a copy itself, whose headers come before those that the second one added.
    """
    own, added = list(copied), dict[bytes, bytes]()
    while own and own[-1][0].startswith(_PREFIX) and own[-1][0] not in added:
        name, value = own.pop()
        added[name] = value or b""
    try:
        topic, partition, offset = (added[_PREFIX + name].decode() for name in (b"topic", b"partition", b"offset"))
        found = Origin(topic, int(partition), int(offset))
    except (KeyError, ValueError):
        return None
    is_place = _TOPIC.fullmatch(topic) and found.partition >= 0 and 0 <= found.offset <= _MOST
    return (found, own) if is_place else None
