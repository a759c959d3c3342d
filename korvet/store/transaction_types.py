"""What is asked of transactions and what they answer, as values. Codes are Kafka's, 0 is none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from korvet.store.group_replies import place, text
from korvet.store.group_types import Place


class Decision(NamedTuple):
    """What is to be carried out everywhere: the control batches' producer and epoch, and all that took part.

    ``places`` come with their topics' ids in hex.
    """

    ordinal: int
    producer_id: int
    producer_epoch: int
    is_commit: bool
    places: Sequence[tuple[Place, str]]
    groups: Sequence[str]


class ProducerId(NamedTuple):
    """The answer to who asked for an id, or ended a transaction; -1 where there is none."""

    code: int
    producer_id: int = -1
    producer_epoch: int = -1


class Added(NamedTuple):
    """What became of members of a transaction; a code for each where the first one is none."""

    code: int
    ordinal: int = -1
    codes: Sequence[int] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionDescription:
    """A transactional id as an administrator sees it; times are ms since 1970, -1 where there is none."""

    transactional_id: str
    state: str
    producer_id: int
    producer_epoch: int
    ordinal: int
    timeout_ms: int
    started_ms: int
    updated_ms: int
    places: Sequence[tuple[Place, str]]


def decision(reply: Any) -> Decision:
    """A decision as the library's functions tell it."""
    ordinal, producer_id, epoch, outcome, places, groups = reply
    took_part = _places(places), [text(group) for group in groups]
    return Decision(int(ordinal), int(producer_id), int(epoch), outcome == b"commit", *took_part)


def described(transactional_id: str, values: Mapping[str, Any]) -> TransactionDescription:
    """The reply of korvet_txn_describe, by its names."""
    return TransactionDescription(
        transactional_id=transactional_id,
        state=text(values["state"]),
        producer_id=int(values["producer_id"]),
        producer_epoch=int(values["producer_epoch"]),
        ordinal=int(values["ordinal"]),
        timeout_ms=int(values["timeout_ms"]),
        started_ms=int(values["started_ms"]),
        updated_ms=int(values["updated_ms"]),
        places=_places(values["partitions"]),
    )


def _places(flat: Sequence[bytes]) -> Sequence[tuple[Place, str]]:
    return [(place(name), text(topic_id)) for name, topic_id in zip(flat[::2], flat[1::2], strict=True)]
