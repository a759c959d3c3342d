"""Partitions."""

from __future__ import annotations

from korvet.store.contract.function import Function

LOG_KEYS = ("log", "meta", "producers")
TRANSACTION_LOG_KEYS = (*LOG_KEYS, "open", "aborted", "transactions")

LOG_FUNCTIONS = (
    Function(
        name="korvet_log_create",
        description="make the keys of a partition",
        keys=(*LOG_KEYS, "open?", "aborted?", "transactions?"),
        args=("topic_id", "run_id"),
        reply="{code}; may be repeated",
    ),
    Function(
        name="korvet_log_append",
        description="append a record batch",
        keys=(*LOG_KEYS, "temporary?"),
        args=(
            "topic_id",
            "run_id",
            "records",
            "size",
            "max_timestamp",
            "crc",
            "producer_id",
            "producer_epoch",
            "base_sequence",
            "batch",
            "is_next?",
        ),
        reply="the text `code base_offset log_start leader_epoch`, each -1 where unknown; "
        "a duplicate gets its first append's base_offset",
    ),
    Function(
        name="korvet_log_offset_for_time",
        description="find the first batch with a timestamp that is not earlier than the given one",
        keys=("log", "meta"),
        args=("topic_id", "timestamp", "cursor", "undated?"),
        reply="{code, status, position, index, log_start}; status: found (position is the offset just past the batch) "
        "| none | more (nothing yet; call again with cursor = position)",
        read_only=True,
        allow_oom=True,
    ),
    Function(
        name="korvet_log_trim",
        description="move the log start up and remove a bounded number of batches below it",
        keys=(*LOG_KEYS, "open?", "aborted?", "transactions?"),
        args=("topic_id", "offset", "epoch?"),
        reply="{code, log_start, more}; more is 1 while batches may be left to remove: call again",
        allow_oom=True,
    ),
    Function(
        name="korvet_log_delete",
        description="remove a partition, a bounded number of batches at a time",
        keys=(*LOG_KEYS, "open?", "aborted?", "transactions?"),
        args=("topic_id",),
        reply="{code, more}; more is 1 while something is left: call again; may be repeated, "
        "and leaves another topic's keys alone",
        allow_oom=True,
    ),
    Function(
        name="korvet_log_take_over",
        description="begin a leader epoch where another server than before holds the log",
        keys=LOG_KEYS,
        args=("topic_id", "run_id"),
        reply="{code, leader_epoch}; may be repeated",
        allow_oom=True,
    ),
    Function(
        name="korvet_log_touch",
        description="write to a partition what it holds already, so that WAIT has a write of this connection to "
        "wait for",
        keys=("meta",),
        args=("topic_id",),
        reply="code; may be repeated",
        allow_oom=True,
    ),
    Function(
        name="korvet_log_attach",
        description="make the Redis group of a Kafka group at its position, or move it there",
        keys=LOG_KEYS,
        args=("topic_id", "group_id", "offset", "mode"),
        reply="{code}; may be repeated",
        allow_oom=True,
    ),
    Function(
        name="korvet_log_detach",
        description="destroy the Redis group of a Kafka group",
        keys=LOG_KEYS,
        args=("topic_id", "group_id"),
        reply="{code}; a Redis group that is not there is none; may be repeated",
        allow_oom=True,
    ),
    Function(
        name="korvet_log_compaction_begin",
        description="take or keep the lease of a partition's compaction, and remove what the last one left behind",
        keys=(*LOG_KEYS, "spare"),
        args=("topic_id", "token", "lease_ms"),
        reply="{code, status}; status: busy (somebody else's) | more (call again) | ready (the spare is empty, or as "
        "the token's owner left it)",
        allow_oom=True,
    ),
    Function(
        name="korvet_log_compaction_copy",
        description="copy entries into the stream beside the log, without what goes and with what changes",
        keys=(*LOG_KEYS, "spare"),
        args=(
            "topic_id",
            "run_id",
            "epoch",
            "start",
            "token",
            "copied",
            "cursor",
            "until",
            "removed_bytes",
            "removed_batches",
            "dropped",
            "change...",
        ),
        reply="{code, status, copied}; status: ready | lost (the partition or the lease is not what it was: give up)",
    ),
    Function(
        name="korvet_log_compaction_swap",
        description="copy what came behind, and put the stream beside the log in its place",
        keys=(*LOG_KEYS, "spare", "aborted?"),
        args=(
            "topic_id",
            "run_id",
            "epoch",
            "start",
            "token",
            "copied",
            "cursor",
            "grown_bytes",
            "cleaned",
            "marker...",
        ),
        reply="{code, status, copied, cursor}; status: more (call again with copied and cursor) | done | lost (the "
        "partition or the lease is not what it was: give up)",
        allow_oom=True,
    ),
    Function(
        name="korvet_log_compaction_end",
        description="remove what a compaction needs no more, and then give its lease back",
        keys=(*LOG_KEYS, "spare"),
        args=("topic_id", "token", "run_id?", "epoch?", "cleaned?"),
        reply="{code, more}; more is 1 while something is left: call again; may be repeated",
        allow_oom=True,
    ),
    Function(
        name="korvet_log_describe",
        description="what a partition holds, and where the Redis groups on it stand",
        keys=("log", "meta"),
        args=(),
        reply="{code}, or {0, topic_id, _, start, _, end, _, epoch, _, batches, _, bytes, _, groups, [[name, _, "
        "position, _, lag_records, _, lag_batches, _], ...]}: each name is followed by its value, the position is a "
        "text",
        read_only=True,
        allow_oom=True,
    ),
    Function(
        name="korvet_log_append_transactional",
        description="append a record batch of a transaction",
        keys=(*TRANSACTION_LOG_KEYS, "temporary?"),
        args=(
            "topic_id",
            "run_id",
            "records",
            "size",
            "max_timestamp",
            "crc",
            "producer_id",
            "producer_epoch",
            "base_sequence",
            "batch",
            "is_next",
            "ordinal",
            "transactional_id",
            "joins?",
        ),
        reply="the text `code base_offset log_start leader_epoch`, as log_append",
    ),
    Function(
        name="korvet_log_mark",
        description="end a transaction in a partition by a control batch",
        keys=TRANSACTION_LOG_KEYS,
        args=(
            "topic_id",
            "run_id",
            "producer_id",
            "producer_epoch",
            "ordinal",
            "decision",
            "size",
            "max_timestamp",
            "crc",
            "batch",
        ),
        reply="the text `code base_offset log_start leader_epoch`; base_offset is -1 where the transaction was ended "
        "before and nothing is written; may be repeated",
        allow_oom=True,
    ),
    Function(
        name="korvet_log_producers",
        description="what is remembered of the producers of a partition",
        keys=TRANSACTION_LOG_KEYS,
        args=("topic_id", "cursor"),
        reply="{code, cursor, [[producer_id, epoch, last_sequence, last_timestamp, first_offset of its open "
        "transaction, ordinal of it, transactional_id], ...]}; call again with the cursor until it is '0'; what is not "
        "known is -1 or ''",
        read_only=True,
        allow_oom=True,
    ),
    Function(
        name="korvet_log_forget_producers",
        description="forget producers that were silent for long, some at a time",
        keys=TRANSACTION_LOG_KEYS,
        args=("topic_id", "expiration_ms", "is_first"),
        reply="{code, more}; more is 1 while some are left to be looked at: call again; may be repeated",
        allow_oom=True,
    ),
)
