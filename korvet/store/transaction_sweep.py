"""What time does to transactions: those that lasted too long are aborted, those that somebody left half-way are brought
to their end, and transactional ids that nobody used for long are forgotten.

A transactional id has one deadline in its shard, and whoever is there when it is past acts. Front-ends look at every
shard each second, each beginning at another one, and what one has in hand another finds done or does again.
"""

from __future__ import annotations

from random import randrange
from typing import Final

import anyio
import structlog

from korvet.errors import KorvetError, StoreError
from korvet.store.keys import TRANSACTION_SHARDS
from korvet.store.transactions import Transactions

log = structlog.get_logger()

INTERVAL_S: Final = 1.0
HANGING_INTERVAL_S: Final = 60.0


async def keep_swept(transactions: Transactions) -> None:
    """Sweep every second, until cancelled. What goes wrong again and again is said once."""
    said = ""
    while True:
        await anyio.sleep(INTERVAL_S)
        try:
            await sweep(transactions)
            said = ""
        except KorvetError as error:
            if said != str(error):
                log.warning("the sweep of transactions was cut short", reason=str(error))
            said = str(error)


async def keep_closed(transactions: Transactions) -> None:
    """Close every minute what a history that went back left open, until cancelled."""
    while True:
        await anyio.sleep(HANGING_INTERVAL_S)
        try:
            await transactions.close_hanging()
        except KorvetError as error:
            log.warning("the look for transactions that were left open was cut short", reason=str(error))


async def sweep(transactions: Transactions) -> None:
    """Act on all that is due now.

    A transaction that cannot be brought to its end is told of in the log, once, and does not keep the others: its shard
    lets pass a while that grows to ten seconds before it is due again. A shard that cannot be read keeps no other one.

    :raises StoreUnavailable, StoreFull: where a shard cannot be asked.
    :raises StoreError: at the end, where one cannot be read.
    """
    first = randrange(TRANSACTION_SHARDS)
    unreadable: StoreError | None = None
    for step in range(TRANSACTION_SHARDS):
        try:
            due = await transactions.due((first + step) % TRANSACTION_SHARDS)
        except StoreError as error:
            unreadable = error
            continue
        for transactional_id in due:
            try:
                await transactions.tend(transactional_id)
            except KorvetError as error:
                transactions.note_failure(transactional_id, error)
    if unreadable is not None:
        raise unreadable
