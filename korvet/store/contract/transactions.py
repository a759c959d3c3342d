"""Transactional ids."""

from __future__ import annotations

from korvet.store.contract.function import Function

TRANSACTION_KEYS = ("id", "deadlines")

TRANSACTION_FUNCTIONS = (
    Function(
        name="korvet_txn_init",
        description="give the producer of a transactional id its producer id and epoch, and fence the one before",
        keys=TRANSACTION_KEYS,
        args=("transactional_id", "timeout", "producer_id", "producer_epoch", "fresh_id", "outages?"),
        reply="{code, producer_id, epoch}; with CONCURRENT_TRANSACTIONS {code, -1, -1, decision}: call again when that "
        "is finished",
    ),
    Function(
        name="korvet_txn_add",
        description="take partitions and groups into a transaction, or verify that they are in it",
        keys=TRANSACTION_KEYS,
        args=("transactional_id", "producer_id", "producer_epoch", "mode", "outages", "members..."),
        reply="{code, ordinal or -1, [code, ...]}, one for each member; with CONCURRENT_TRANSACTIONS {code, -1, [], "
        "decision}",
    ),
    Function(
        name="korvet_txn_end",
        description="decide that a transaction is committed or aborted",
        keys=TRANSACTION_KEYS,
        args=("transactional_id", "producer_id", "producer_epoch", "decision", "version", "fresh_id", "outages?"),
        reply="{code, producer_id, epoch}, or {code, producer_id, epoch, decision} where there is one to be finished, "
        "also with CONCURRENT_TRANSACTIONS",
        allow_oom=True,
    ),
    Function(
        name="korvet_txn_complete",
        description="note that a decision is finished everywhere",
        keys=TRANSACTION_KEYS,
        args=("transactional_id", "ordinal", "expiration"),
        reply="{0}; may be repeated",
        allow_oom=True,
    ),
    Function(
        name="korvet_txn_due",
        description="the transactional ids of which something is due",
        keys=("deadlines",),
        args=("most",),
        reply="[transactional_id, ...]",
        read_only=True,
        allow_oom=True,
    ),
    Function(
        name="korvet_txn_expire",
        description="do what is due of a transactional id",
        keys=TRANSACTION_KEYS,
        args=("transactional_id", "expiration"),
        reply="{0}, or {0, decision} where there is one to be finished",
        allow_oom=True,
    ),
    Function(
        name="korvet_txn_describe",
        description="the state of a transactional id",
        keys=("id",),
        args=(),
        reply="{code}, or {0, name, value, ...} of state, producer_id, producer_epoch, last_producer_id, "
        "last_producer_epoch, marker_epoch, ordinal, timeout_ms, started_ms, updated_ms, partitions, groups; numbers "
        "that are not known are -1. partitions: [`topic:partition`, topic_id, ...]",
        read_only=True,
        allow_oom=True,
    ),
)
