"""Requests and answers of transactions, as values. Codes are Kafka's, 0 is none."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import anyio

from korvet.errors import StoreUnavailable
from korvet.store.groups.replies import text, topic_partition
from korvet.store.groups.types import TopicPartition

_INSISTED: Final = 20
_INSISTED_PAUSE_S: Final = 0.25


class Decision(NamedTuple):
    """A commit or abort for all members of a transaction to carry out.

    The producer id and epoch are those of the markers. ``partitions`` come with their topics' ids in hex. ``now_ms`` is
    the coordinator's time, for the markers. A decision about many members comes in parts.
    """

    ordinal: int
    producer_id: int
    producer_epoch: int
    is_commit: bool
    partitions: Sequence[tuple[TopicPartition, str]]
    groups: Sequence[str]
    now_ms: int


class ProducerId(NamedTuple):
    """The answer to an InitProducerId or EndTxn; -1 if there is no producer id or epoch."""

    code: int
    producer_id: int = -1
    producer_epoch: int = -1


class Added(NamedTuple):
    """The answer to members that join a transaction. Each has one of ``codes`` if ``code`` is none."""

    code: int
    ordinal: int = -1
    codes: Sequence[int] = ()


class Listed(NamedTuple):
    """A transactional id in a list of all; times as in `TransactionDescription`."""

    transactional_id: str
    state: str
    producer_id: int
    started_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionDescription:
    """A transactional id, for administrators; times are ms since 1970, -1 if there is none."""

    transactional_id: str
    state: str
    producer_id: int
    producer_epoch: int
    ordinal: int
    timeout_ms: int
    started_ms: int
    updated_ms: int
    partitions: Sequence[tuple[TopicPartition, str]]


def decision(reply: Any, now_ms: int) -> Decision:
    """A decision from a reply of the library's functions.

    :param now_ms: the coordinator's time.
    """
    ordinal, producer_id, epoch, outcome, partitions, groups = reply
    members = _partitions(partitions), [text(group) for group in groups]
    return Decision(int(ordinal), int(producer_id), int(epoch), outcome == b"commit", *members, int(now_ms))


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
        partitions=_partitions(values["partitions"]),
    )


def _partitions(flat: Sequence[bytes]) -> Sequence[tuple[TopicPartition, str]]:
    return [(topic_partition(name), text(topic_id)) for name, topic_id in zip(flat[::2], flat[1::2], strict=True)]


async def insist(call: Callable[[], Awaitable[Any]]) -> Any:
    """Make a repeatable call, and retry it for some seconds while Redis is away."""
    for _ in range(_INSISTED):
        try:
            return await call()
        except StoreUnavailable:
            await anyio.sleep(_INSISTED_PAUSE_S)
    return await call()
