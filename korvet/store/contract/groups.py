"""Groups, and who reads for which."""

from __future__ import annotations

from korvet.store.contract.function import Function

GROUP_KEYS = ("group", "members", "sessions", "static", "offsets")
ATTACHED_GROUP_KEYS = (*GROUP_KEYS, "attached")
TRANSACTION_GROUP_KEYS = (*ATTACHED_GROUP_KEYS, "pending")

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
        reply="{code, member_id} when refused, {REBALANCE_IN_PROGRESS, member_id, 'target'}: bring the target of the "
        "group, which speaks the consumer protocol, up to date and call again with the same arguments, else {0, "
        "member_id, status, wait_ms, generation, protocol_type, protocol, leader, skip_assignment, [member_id, "
        "instance_id, metadata, ...] for the leader}; status: ready | parked (call group_await after wait_ms or a "
        "wake-up)",
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
        args=("outages", "member_id", "instance_id", "generation", "catalog_version?"),
        reply="code; RETRY where the target of the group, which speaks the consumer protocol, is of another catalog: "
        "bring it up to date and call again",
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
        keys=(*GROUP_KEYS, "pending?"),
        args=("outages", "places..."),
        reply="{code, [code, ...]}, one for each place; where the key pending is given, open transactions forget them "
        "as well",
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
        "protocol, leader, rebalance_ends_in_ms, sync_ends_in_ms, expires_in_ms, members, pending, type, offsets, "
        "lags. What is not known is '', of numbers nil. members: [[name, value, ...], ...] of member_id, "
        "instance_id, client_id, client_host, session_timeout_ms, session_ends_in_ms, rebalance_timeout_ms, topics "
        "(it wants to read), partitions (it is assigned, as `topic:partition`), metadata, assignment (as the "
        "members sent them). pending: ids that are yet to join. offsets: [`topic:partition`, `offset leader_epoch "
        "topic_id metadata`, ...]. lags: [[name, value, ...], ...] of place, offset, end_offset, lag in records. "
        "type: classic, or consumer, which has also target_epoch, assignor, unsettled (why it is not Stable, in "
        "words), and of its members member_epoch, previous_epoch, member_state, target, owned, revoking "
        "(assignments as `topic_id:partition,... ...`), regex, rack, assignor, is_classic",
        read_only=True,
        allow_oom=True,
    ),
    Function(
        name="korvet_group_state",
        description="a group's state without its members, as it is by now",
        keys=GROUP_KEYS,
        args=("outages?",),
        reply="{code}, or {0, 'state', state, 'generation', generation, 'protocol_type', protocol_type or '', "
        "'members', members, 'pending', ids that are yet to join, 'type', classic or consumer}",
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
        reply="{code, [`topic:partition`, topic_id, ...]}, the places whose offsets became committed by this call; may "
        "be repeated",
        allow_oom=True,
    ),
    Function(
        name="korvet_group_consume",
        description="a heartbeat of the consumer protocol: join, stay in, move towards the target, or leave",
        keys=GROUP_KEYS,
        args=(
            "outages",
            "id",
            "locator",
            "catalog_version",
            "member_id",
            "member_epoch",
            "instance_id",
            "rack",
            "assignor",
            "regex",
            "has_regex",
            "has_names",
            "owned",
            "has_owned",
            "rebalance_timeout",
            "session_timeout",
            "client_id",
            "client_host",
            "version",
            "max_size",
            "retention",
            "policy",
            "answers_anyway",
            "topics",
            "names...",
        ),
        reply="{code, member_id, why} when refused, else {0, member_id, 'ready', member_epoch, has_assignment, "
        "assignment}, {0, member_id, 'target'}: bring the target up to date and call again with the same arguments, "
        "or {0, member_id, 'topics', name, ...}: call again with these topics. why is Kafka's message with {group} in "
        "the place of the group's id, or ''",
        allow_oom=True,
    ),
    Function(
        name="korvet_group_beat",
        description="show that a settled member lives, which has nothing to say",
        keys=GROUP_KEYS,
        args=("catalog_version", "member_id", "member_epoch", "instance_id", "session_timeout"),
        reply="1, and nothing is to be told; or 0, where group_consume is to be called because the member is not "
        "settled, something is due, or the request is to be refused",
        allow_oom=True,
    ),
    Function(
        name="korvet_group_snapshot",
        description="what a target assignment is made from",
        keys=GROUP_KEYS,
        args=("outages",),
        reply="{code}, or {0, name, value, ...} of generation, target_epoch, catalog_version, topics, assignor (of "
        "the present target), members. members: [[name, value, ...], ...] of member_id, instance_id, rack, assignor, "
        "regex, topics (names), target, is_classic, sorted by member_id. It is of the group as it was last written: "
        "who is overdue is in it",
        read_only=True,
        allow_oom=True,
    ),
    Function(
        name="korvet_group_assign",
        description="install a target assignment that was made from a snapshot",
        keys=GROUP_KEYS,
        args=("outages", "generation", "target_epoch", "catalog_version", "topics", "assignor", "targets..."),
        reply="{code, generation, target_epoch}, of the group as it is by then",
        allow_oom=True,
    ),
    Function(
        name="korvet_group_check_fetch",
        description="whether a member may read offsets of its group in an epoch",
        keys=GROUP_KEYS,
        args=("outages", "member_id", "member_epoch"),
        reply="code; NONE for a group that does not speak the consumer protocol",
        read_only=True,
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
