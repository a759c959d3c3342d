"""Batches of idempotent producers in flight to one partition.

A producer sends several batches before it knows the outcome of the first. When Redis is lost, the batches in flight
fail. Batches that arrive after the reconnect follow a gap that the producer is about to close. Redis refuses them if it
is the same server and knows the producer. If not (a new producer, a rolled-back history), it would accept the gap, and
the failed batches would come too late. So until a failed batch is retried, Redis accepts a later batch only as the next
one after those that it knows. It refuses others with the code that makes clients retry in order. Redis decides, because
the failed batch may have been retried at another front-end.

The same holds for a batch after one that is in flight and may still fail: at maxmemory, or if it is large and its slot
is moving. A client that learns that the later batch is stored assumes the same of the earlier one.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any, NamedTuple

from korvet.errors import StoreUnavailable
from korvet.store.contract import GONE, RESEND
from korvet.wire.batch import Batch

SEQUENCES = 1 << 31
_SENT_AGAIN = (b"%d " % RESEND, b"%d " % GONE)
_MOST_PRODUCERS = 1000
_MOST_BATCHES = 20
"""The most remembered batches of a producer: clients have at most five in flight. Beyond it, the oldest count."""


class _Sent(NamedTuple):
    epoch: int
    sequence: int
    reply: asyncio.Future[Any]

    @property
    def has_failed(self) -> bool:
        """True if it will be sent again: it failed, or the front-end must repeat it."""
        reply = self.reply
        if not reply.done():
            return False
        return reply.cancelled() or reply.exception() is not None or reply.result().startswith(_SENT_AGAIN)

    @property
    def is_open(self) -> bool:
        """True if it is in flight, or will be sent again."""
        return not self.reply.done() or self.has_failed

    @property
    def was_taken(self) -> bool:
        return self.reply.done() and not self.has_failed and self.reply.result().startswith(b"0 ")


class InFlight:
    """The batches in flight of each producer id, oldest first. Answered batches are dropped."""

    __slots__ = ("_producers",)

    def __init__(self) -> None:
        self._producers: dict[int, deque[_Sent]] = {}

    def __len__(self) -> int:
        """The number of remembered producers."""
        return len(self._producers)

    def is_behind_a_failure(self, batch: Batch) -> bool:
        """True if an earlier batch failed without a retry, and Redis has accepted none since."""
        sent = self._producers.get(batch.producer_id)
        if sent is None:
            return False
        while sent and sent[0].reply.done() and not sent[0].has_failed:
            sent.popleft()
        if not sent or not sent[0].reply.done():
            return False
        while sent and sent[0].has_failed and any(later.was_taken for later in sent):
            sent.popleft()
        if not sent or not sent[0].has_failed:
            return False
        ahead = (batch.base_sequence - sent[0].sequence) % SEQUENCES
        if sent[0].epoch == batch.producer_epoch and 0 < ahead < SEQUENCES // 2:
            return True
        # It was retried, or the producer started over.
        sent.clear()
        return False

    def is_behind_another(self, batch: Batch) -> bool:
        """True if an earlier batch is in flight."""
        for one in reversed(self._producers.get(batch.producer_id, ())):
            ahead = (batch.base_sequence - one.sequence) % SEQUENCES
            if not one.reply.done() and one.epoch == batch.producer_epoch and 0 < ahead < SEQUENCES // 2:
                return True
        return False

    def add(self, batch: Batch, reply: asyncio.Future[Any]) -> None:
        """Note a batch that was sent; call `is_behind_a_failure` first."""
        sent = self._producers.get(batch.producer_id)
        if sent is None:
            if len(self._producers) >= _MOST_PRODUCERS:
                self._sweep()
            sent = self._producers[batch.producer_id] = deque()
        while sent and sent[-1].reply.done() and not sent[-1].has_failed:
            sent.pop()
        if len(sent) < _MOST_BATCHES:
            sent.append(_Sent(batch.producer_epoch, batch.base_sequence, reply))

    def refuse(self, batch: Batch, why: str) -> None:
        """Note a batch that the front-end refused unsent, and that the producer will retry."""
        if batch.producer_id >= 0:
            self.is_behind_a_failure(batch)
            self.add_failed(batch, StoreUnavailable(why))

    def add_failed(self, batch: Batch, error: Exception) -> None:
        """Note a batch that was not appended, and that the producer will retry."""
        failed: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        failed.set_exception(error)
        failed.exception()
        self.add(batch, failed)

    def _sweep(self) -> None:
        """Forget producers without open batches, or all if that does not suffice."""
        busy = {producer: sent for producer, sent in self._producers.items() if any(one.is_open for one in sent)}
        self._producers = busy if len(busy) < _MOST_PRODUCERS else {}
