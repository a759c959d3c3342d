"""The sweep of transactions: it aborts overlong ones, finishes those that a front-end left, and forgets unused
transactional ids.

A transactional id has one deadline in its shard, and any front-end may act once it is past. One front-end of a
namespace has the turn (`korvet.store.registry`). Several at once do no harm: each step is repeatable. The sweep checks
shards that hold an id each second, and all of them every few seconds.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Final

import anyio

from korvet.errors import KorvetError, StoreError
from korvet.store.activity import IDLE_S, Activity
from korvet.store.every import Steps, every
from korvet.store.keys import TRANSACTION_SHARDS
from korvet.store.registry import SweepTurn, taking
from korvet.store.transactions.transactions import Transactions

INTERVAL_S: Final = 1.0
UNUSED_INTERVAL_S: Final = 5.0
"""Seconds between two searches for shards with new transactional ids."""
HANGING_INTERVAL_S: Final = 60.0


async def keep_swept(
    transactions: Transactions, turn: SweepTurn, activity: Activity, steps: Steps | None = None
) -> None:
    """Sweep every second while it is this front-end's turn, until cancelled.

    In an idle namespace no deadline changes, so the sweep sleeps until the first one.
    """
    in_use: Sequence[int] = ()
    looked_at, rest_s = -UNUSED_INTERVAL_S, 0.0

    async def step() -> None:
        nonlocal in_use, looked_at, rest_s
        rest_s = 0.0
        async with taking(turn):
            if anyio.current_time() - looked_at >= UNUSED_INTERVAL_S:
                in_use = await transactions.shards_in_use()
                looked_at = anyio.current_time()
            await sweep(transactions, in_use)
            if activity.is_idle:
                rest_s = min(IDLE_S, await transactions.next_due_s(in_use))

    def pause_s() -> float:
        return INTERVAL_S if in_use else UNUSED_INTERVAL_S

    async def sleep(seconds: float) -> None:
        await activity.sleep(seconds, rest_s)

    complaint = "the sweep of transactions was cut short"
    has_reported = transactions.store.has_reported
    await every(pause_s, step, complaint, at_once=True, sleep=sleep, has_reported=has_reported, steps=steps)


async def keep_closed(
    transactions: Transactions, turn: SweepTurn, activity: Activity, steps: Steps | None = None
) -> None:
    """Close every minute what a rolled-back history left open, while it is this front-end's turn."""

    async def step() -> None:
        async with taking(turn):
            await transactions.close_hanging()

    complaint = "the look for transactions that were left open was cut short"
    has_reported = transactions.store.has_reported
    await every(HANGING_INTERVAL_S, step, complaint, sleep=activity.sleep, has_reported=has_reported, steps=steps)


async def sweep(transactions: Transactions, shards: Sequence[int] = range(TRANSACTION_SHARDS)) -> None:
    """Act on all that is due now.

    A transaction that cannot be finished is logged once and does not delay the others: its shard postpones it by a
    pause that grows to ten seconds. The sweep skips a shard that cannot be read, or whose server is away.

    :raises StoreError: at the end, if a shard cannot be read.
    :raises StoreUnavailable, StoreFull: at the end, if a shard's server fails and each other shard was read.
    """
    failures: list[KorvetError] = []
    for shard in random.sample(shards, len(shards)):
        try:
            due = await transactions.due(shard)
        except KorvetError as error:
            failures.append(error)
            continue
        for transactional_id in due:
            try:
                await transactions.tend(transactional_id)
            except KorvetError as error:
                transactions.note_failure(transactional_id, error)
    if failures:
        unreadable = [failure for failure in failures if isinstance(failure, StoreError)]
        raise (unreadable or failures)[0]
