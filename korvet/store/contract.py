"""The contract of the Lua library: every function's keys, arguments, reply and flags, in one table.

The front-end takes from it how a function is called (`Function.read_only`: by FCALL_RO). A test holds the table
against the headers in ``lua/`` and against FUNCTION LIST, so that none of them can change alone.

A key or argument name that ends in ``?`` may be left out, one that ends in ``...`` may be given any number of times.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

LIBRARY = "korvet"

RESEND = -2
"""Code of a reply: the temporary key of a placed batch is gone; send the batch again."""
GONE = -3
"""Code of a reply: the partition's topic id is absent or another; read the catalog again."""
UNINDEXED = -4
"""Code of a reply: there is no such group; put it in the index, and call again with an id for it."""
RETRY = -5
"""Code of a reply: the group has further Redis groups by now; destroy these too, and call again."""
LATE = -6
"""Code of a reply: the call waited while Redis stood still; call again, unless who asked is gone by now."""
VERIFY = -7
"""Code of a reply: no open transaction of this producer and epoch here; ask its coordinator, send with the ordinal."""
FRESH_ID = -8
"""Code of a reply: the transactional id needs a producer id that was never used; call again with one."""

CATALOG_KEYS = ("meta", "topics", "configs")
LOG_KEYS = ("log", "meta", "producers")
TRANSACTION_LOG_KEYS = (*LOG_KEYS, "open", "aborted", "transactions")
GROUP_KEYS = ("group", "members", "sessions", "static", "offsets")
ATTACHED_GROUP_KEYS = (*GROUP_KEYS, "attached")
TRANSACTION_GROUP_KEYS = (*ATTACHED_GROUP_KEYS, "pending")
TRANSACTION_KEYS = ("id", "deadlines")


@dataclass(frozen=True, slots=True, kw_only=True)
class Function:
    """One function: ``keys`` and ``args`` by name and in order, ``reply`` as its header's Returns says it.

    ``read_only`` is the flag no-writes; ``allow_oom`` lets it run at maxmemory (with no-writes Redis ignores maxmemory
    only since 7.0.1, so the reading ones carry it too); ``allow_stale`` lets it run on a replica without its primary.
    """

    name: str
    description: str
    keys: tuple[str, ...]
    args: tuple[str, ...]
    reply: str
    read_only: bool = False
    allow_oom: bool = False
    allow_stale: bool = False

    @property
    def flags(self) -> frozenset[str]:
        """The flags as FUNCTION LIST shows them."""
        flags = {"no-writes": self.read_only, "allow-oom": self.allow_oom, "allow-stale": self.allow_stale}
        return frozenset(flag for flag, is_set in flags.items() if is_set)


LIBRARY_FUNCTIONS = (
    Function(
        name="korvet_version",
        description="the version of this library",
        keys=(),
        args=(),
        reply="the version string",
        read_only=True,
        allow_oom=True,
        allow_stale=True,
    ),
)

CATALOG_FUNCTIONS = (
    Function(
        name="korvet_catalog_read",
        description="everything in the catalog, or only its version where that is the known one",
        keys=CATALOG_KEYS,
        args=("known_version",),
        reply="{0, version, cluster_id or '', [name, topic JSON, ...], [config, value, ...]}; "
        "empty arrays when known_version is the version",
        read_only=True,
        allow_oom=True,
    ),
    Function(
        name="korvet_catalog_init",
        description="give the catalog its cluster id, once",
        keys=CATALOG_KEYS,
        args=("cluster_id",),
        reply="{0, cluster_id}",
    ),
    Function(
        name="korvet_catalog_configure",
        description="change cluster-wide dynamic settings",
        keys=CATALOG_KEYS,
        args=("change",),
        reply="{0}",
    ),
    Function(
        name="korvet_producer_id",
        description="hand out a producer id that was never handed out, even where history went back",
        keys=CATALOG_KEYS,
        args=(),
        reply="{0, producer_id}; the greater of the last one + 1 and the microseconds since 1970",
    ),
    Function(
        name="korvet_topic_create",
        description="add a topic to the catalog",
        keys=CATALOG_KEYS,
        args=("name", "id", "partitions", "configs"),
        reply="{code, topic JSON}; with TOPIC_ALREADY_EXISTS that of the existing topic, with INVALID_PARTITIONS ''",
    ),
    Function(
        name="korvet_topic_grow",
        description="give a topic more partitions",
        keys=CATALOG_KEYS,
        args=("name", "id", "partitions"),
        reply="{code, topic JSON}; '' when there is no such topic",
    ),
    Function(
        name="korvet_topic_configure",
        description="change what is set for a topic",
        keys=CATALOG_KEYS,
        args=("name", "id", "change"),
        reply="{code, topic JSON}; '' when there is no such topic",
    ),
    Function(
        name="korvet_topic_delete",
        description="mark a topic as being deleted, or forget one that is marked",
        keys=CATALOG_KEYS,
        args=("name", "id", "step"),
        reply="{code}; both steps may be repeated: begin of a marked topic and finish of a forgotten one are no errors",
        allow_oom=True,
    ),
)

FRONTEND_FUNCTIONS = (
    Function(
        name="korvet_frontend_renew",
        description="renew the lease of an address, and tell of all that live",
        keys=("frontends",),
        args=("address", "lease"),
        reply="{0, node_id or -1, outages, [node_id, address, ...] of those that live, by node id}; outages: a text "
        "`from-to ...` of the last times, in ms, that nobody renewed for long, one that ends now included",
        allow_oom=True,
    ),
    Function(
        name="korvet_frontend_leave",
        description="end the lease of an address, which keeps its node id",
        keys=("frontends",),
        args=("address",),
        reply="{0}",
        allow_oom=True,
    ),
)

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
)

TRANSACTION_FUNCTIONS = (
    Function(
        name="korvet_txn_init",
        description="give the producer of a transactional id its producer id and epoch, and fence the one before",
        keys=TRANSACTION_KEYS,
        args=("transactional_id", "timeout", "producer_id", "producer_epoch", "fresh_id"),
        reply="{code, producer_id, epoch}; with CONCURRENT_TRANSACTIONS {code, -1, -1, decision}: call again when that "
        "is finished",
    ),
    Function(
        name="korvet_txn_add",
        description="take partitions and groups into a transaction, or verify that they are in it",
        keys=TRANSACTION_KEYS,
        args=("transactional_id", "producer_id", "producer_epoch", "mode", "members..."),
        reply="{code, ordinal or -1, [code, ...]}, one for each member; with CONCURRENT_TRANSACTIONS {code, -1, [], "
        "decision}",
    ),
    Function(
        name="korvet_txn_end",
        description="decide that a transaction is committed or aborted",
        keys=TRANSACTION_KEYS,
        args=("transactional_id", "producer_id", "producer_epoch", "decision", "version", "fresh_id"),
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

GROUP_FUNCTIONS = (
    Function(
        name="korvet_group_index",
        description="put a group into the index, at maxmemory as well",
        keys=("index",),
        args=("group_id",),
        reply="1 where it was not in it before, else 0",
        allow_oom=True,
    ),
    Function(
        name="korvet_group_join",
        description="join a group, or join it again",
        keys=GROUP_KEYS,
        args=(
            "outages",
            "id",
            "locator",
            "member_id",
            "new_member_id",
            "instance_id",
            "client_id",
            "client_host",
            "session_timeout",
            "rebalance_timeout",
            "protocol_type",
            "version",
            "min_session_timeout",
            "max_session_timeout",
            "max_size",
            "initial_delay",
            "retention",
            "protocols...",
        ),
        reply="{code, member_id} when refused, else {0, member_id, status, wait_ms, generation, protocol_type, "
        "protocol, leader, skip_assignment, [member_id, instance_id, metadata, ...] for the leader}; status: "
        "ready | parked (call group_await after wait_ms or a wake-up)",
        allow_oom=True,
    ),
    Function(
        name="korvet_group_await",
        description="ask for the answers to joins that were parked",
        keys=GROUP_KEYS,
        args=("outages", "members..."),
        reply="[the same as group_join, ...], one for each",
        allow_oom=True,
    ),
    Function(
        name="korvet_group_sync",
        description="store the leader's assignments, or hand a member its own",
        keys=GROUP_KEYS,
        args=(
            "outages",
            "member_id",
            "instance_id",
            "generation",
            "names_protocol",
            "protocol_type",
            "protocol",
            "assignments...",
        ),
        reply="{code} when refused, else {0, status, wait_ms, protocol_type, protocol, assignment}; status: ready | "
        "parked (call group_await_sync after wait_ms or a wake-up)",
        allow_oom=True,
    ),
    Function(
        name="korvet_group_await_sync",
        description="ask for the answers to syncs that were parked",
        keys=GROUP_KEYS,
        args=("outages", "generation", "members..."),
        reply="[the same as group_sync, ...], one for each",
        allow_oom=True,
    ),
    Function(
        name="korvet_group_heartbeat",
        description="show that a member lives",
        keys=GROUP_KEYS,
        args=("outages", "member_id", "instance_id", "generation"),
        reply="code",
        allow_oom=True,
    ),
    Function(
        name="korvet_group_leave",
        description="take members out of a group",
        keys=GROUP_KEYS,
        args=("outages", "members..."),
        reply="[code, ...], one for each",
        allow_oom=True,
    ),
    Function(
        name="korvet_group_commit",
        description="commit offsets, as a member or as a consumer without a group's protocol",
        keys=GROUP_KEYS,
        args=(
            "outages",
            "id",
            "locator",
            "member_id",
            "instance_id",
            "generation",
            "version",
            "retention",
            "offsets...",
        ),
        reply="code",
        allow_oom=True,
    ),
    Function(
        name="korvet_group_fetch",
        description="read committed offsets",
        keys=(*GROUP_KEYS, "pending?"),
        args=("places...",),
        reply="[`topic:partition`, `offset leader_epoch topic_id metadata` or '', ...]; `unstable` in the place of an "
        "offset that an open transaction may change, where the key pending is given",
        read_only=True,
        allow_oom=True,
    ),
    Function(
        name="korvet_group_offset_delete",
        description="forget committed offsets of topics that no member subscribes to",
        keys=GROUP_KEYS,
        args=("outages", "places..."),
        reply="{code, [code, ...]}, one for each place",
        allow_oom=True,
    ),
    Function(
        name="korvet_group_offset_forget",
        description="forget committed offsets of topics that are gone",
        keys=GROUP_KEYS,
        args=("places...",),
        reply="how many were forgotten",
        allow_oom=True,
    ),
    Function(
        name="korvet_group_describe",
        description="everything about a group and its members, as it is by now",
        keys=(*GROUP_KEYS, "metas..."),
        args=("outages?", "places..."),
        reply="{code}, or {0, name, value, ...} of id, locator, state, state_for_ms, generation, protocol_type, "
        "protocol, leader, rebalance_ends_in_ms, sync_ends_in_ms, expires_in_ms, members, pending, offsets, lags. What "
        "is not known is '', of numbers nil. members: [[name, value, ...], ...] of member_id, instance_id, client_id, "
        "client_host, session_timeout_ms, session_ends_in_ms, rebalance_timeout_ms, topics (it wants to read), "
        "partitions (it is assigned, as `topic:partition`), metadata, assignment (as the members sent them). pending: "
        "ids that are yet to join. offsets: [`topic:partition`, `offset leader_epoch topic_id metadata`, ...]. lags: "
        "[[name, value, ...], ...] of place, offset, end_offset, lag in records",
        read_only=True,
        allow_oom=True,
    ),
    Function(
        name="korvet_group_state",
        description="a group's state without its members, as it is by now",
        keys=GROUP_KEYS,
        args=("outages?",),
        reply="{code}, or {0, 'state', state, 'generation', generation, 'protocol_type', protocol_type or '', "
        "'members', members, 'pending', ids that are yet to join}",
        read_only=True,
        allow_oom=True,
    ),
    Function(
        name="korvet_group_attach",
        description="remember where there is a Redis group, or is about to be, and tell where these should stand",
        keys=ATTACHED_GROUP_KEYS,
        args=("follower", "places..."),
        reply="{code}, or {0, was_last, [offset, ...]}, one committed offset for each, '' where there is none; "
        "was_last is 1 where nobody else called since this follower did, so that what it moved is where it moved it; "
        "may be repeated",
        allow_oom=True,
    ),
    Function(
        name="korvet_group_attached",
        description="the places whose Redis groups are to be destroyed before a group is deleted",
        keys=ATTACHED_GROUP_KEYS,
        args=("outages?",),
        reply="{code, [`topic:partition`, topic_id, ...]}, with GROUP_ID_NOT_FOUND what is left of one that expired",
        read_only=True,
        allow_oom=True,
    ),
    Function(
        name="korvet_group_delete",
        description="remove a group without members, and its offsets, when its Redis groups are destroyed",
        keys=(*ATTACHED_GROUP_KEYS, "pending?"),
        args=("outages", "which", "places..."),
        reply="code",
        allow_oom=True,
    ),
    Function(
        name="korvet_group_txn_commit",
        description="hold offsets that a transaction commits when it is committed",
        keys=TRANSACTION_GROUP_KEYS,
        args=(
            "outages",
            "id",
            "locator",
            "member_id",
            "instance_id",
            "generation",
            "retention",
            "producer_id",
            "producer_epoch",
            "ordinal",
            "transactional_id",
            "offsets...",
        ),
        reply="code; may be repeated",
        allow_oom=True,
    ),
    Function(
        name="korvet_group_txn_end",
        description="commit or forget the offsets that a transaction holds",
        keys=TRANSACTION_GROUP_KEYS,
        args=("producer_id", "ordinal", "decision"),
        reply="code; may be repeated",
        allow_oom=True,
    ),
)

READER_FUNCTIONS = (
    Function(
        name="korvet_reader_note",
        description="a client at a host reads places for a group",
        keys=("groups",),
        args=("group_id", "ttl", "places..."),
        reply="0; may be repeated",
        allow_oom=True,
    ),
    Function(
        name="korvet_reader_find",
        description="the groups that a client at a host reads places for",
        keys=("groups",),
        args=("places...",),
        reply="[group_id, ...], one for each: '' where there is none, or more than one",
        read_only=True,
        allow_oom=True,
    ),
)


def _by_name(functions: Iterable[Function]) -> Mapping[str, Function]:
    return MappingProxyType({function.name: function for function in functions})


FUNCTIONS: Mapping[str, Function] = _by_name(
    (
        *LIBRARY_FUNCTIONS,
        *CATALOG_FUNCTIONS,
        *FRONTEND_FUNCTIONS,
        *LOG_FUNCTIONS,
        *TRANSACTION_FUNCTIONS,
        *GROUP_FUNCTIONS,
        *READER_FUNCTIONS,
    )
)
"""Every function of the library by its name."""
