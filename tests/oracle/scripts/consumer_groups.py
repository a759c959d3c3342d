"""Groups of the consumer protocol (KIP-848): their heartbeats and descriptions, and what others see of them.

Source: GroupCoordinatorService, GroupMetadataManager.consumerGroupHeartbeat, CurrentAssignmentBuilder, ConsumerGroup.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from tests.oracle.script import Script, Step
from tests.oracle.scripts import transactions
from tests.oracle.scripts.membership import NOBODY
from tests.oracle.scripts.steps import new_topic

FIRST_PLACE: Final = "assignment.topic_partitions[0].partitions[0]"
STATIC_I: Final[dict[str, Any]] = {"instance_id": "i"}
FULL_REQUEST: Final = {"rebalance_timeout": 60000, "subscribed_topic_names": ["$t"], "topic_partitions": []}


def owned(*partitions: int, topic: str = "t") -> list[Mapping[str, Any]]:
    """What a member says it has."""
    return [{"topic_id": f"${topic}_id", "partitions": list(partitions)}]


def beat(who: str, epoch: Any, *errors: str, **more: Any) -> Step:
    """A heartbeat of member `who`, in which nothing but the epoch is said; `Step`'s own settings by their names."""
    settings = {name: more.pop(name) for name in ("until", "save", "ignore", "version") if name in more}
    body = {"group_id": "$g", "member_id": who, "member_epoch": epoch, "rebalance_timeout": -1, **more}
    return Step(api="consumer_group_heartbeat", body=body, errors=errors, **settings)


def join(who: str, *errors: str, epoch: int = 0, **more: Any) -> Step:
    """The first heartbeat of a member, which says everything."""
    return beat(who, epoch, *errors, **{**FULL_REQUEST, **more})


def leave(who: str, *errors: str, epoch: int = -1, **more: Any) -> Step:
    """The last heartbeat of a member."""
    return beat(who, epoch, *errors, **more)


def described(state: str = "", version: int | None = 1) -> Step:
    """The group as it is described, once it is in a state: Kafka's log is a moment behind its answers."""
    reached = ("groups[0].group_state", state) if state else None
    return Step(api="consumer_group_describe", version=version, body={"group_ids": ["$g"]}, until=reached, errors=None)


def seen() -> tuple[Step, ...]:
    """The group as the APIs of classic groups show it."""
    return (
        Step(api="describe_groups", version=6, body={"groups": ["$g"]}, errors=None),
        Step(api="list_groups", version=5, body={}),
        Step(api="list_groups", version=5, body={"types_filter": ["consumer"]}),
        Step(api="list_groups", version=5, body={"types_filter": ["classic"]}),
    )


def known_topic(partitions: int) -> tuple[Step, ...]:
    """Create topic `$t`, and wait until the coordinator deals it out: Kafka's learns of topics after the brokers do."""
    body = {"group_id": "$h", "member_id": "first", "member_epoch": 0, **FULL_REQUEST}
    own = ("member_epoch", "assignment")
    heartbeat = Step(api="consumer_group_heartbeat", version=1, body=body, until=(FIRST_PLACE, 0), ignore=own)
    return (
        *new_topic(partitions=partitions),
        heartbeat,
        replace(heartbeat, body={**body, "member_epoch": -1}, until=None),
        Step(api="delete_groups", version=2, body={"groups_names": ["$h"]}),
    )


def script(name: str, *steps: Step, versions: tuple[int, ...] = (), partitions: int = 3) -> Script:
    """A script of heartbeats that begins with the topic `$t`."""
    return Script(
        name=f"consumer group {name}",
        api="consumer_group_heartbeat",
        steps=(*known_topic(partitions), *steps),
        versions=versions,
    )


SETTLED_PAIR: Final = (
    join("m"),
    join("n"),
    beat("m", 1, topic_partitions=owned(0, 1, 2), save={"kept": "assignment.topic_partitions[0].partitions"}),
    beat("m", 1, topic_partitions=[{"topic_id": "$t_id", "partitions": "$kept"}]),
    beat("n", 2),
)
"""Two members in epoch 2; `m` has kept `$kept`."""

MEMBERS: Final = (
    script(
        "of one member",
        join("m"),
        described("Stable"),
        *seen(),
        beat("m", 1),
        beat("m", 1, topic_partitions=owned(0, 1, 2)),
        beat("m", 1, **{**FULL_REQUEST, "topic_partitions": owned(0, 1, 2)}),
        leave("m"),
        described("Empty"),
        *seen(),
        leave("m", "UNKNOWN_MEMBER_ID"),
        join("m"),
    ),
    script(
        "gives the first member its id",
        join("", save={"m": "member_id"}),
        beat("$m", 1),
        leave("$m"),
        versions=(0,),
    ),
    script(
        "second member",
        join("m"),
        join("n"),
        described("Reconciling"),
        beat("n", 2),
        beat("m", 1, topic_partitions=owned(0, 1, 2), save={"kept": "assignment.topic_partitions[0].partitions"}),
        beat("m", 1, topic_partitions=owned(0, 1, 2)),
        beat("m", 1),
        described("Reconciling"),
        beat("n", 2),
        beat("m", 1, topic_partitions=[{"topic_id": "$t_id", "partitions": "$kept"}]),
        described("Reconciling"),
        beat("n", 2),
        described("Stable"),
        beat("m", 2),
        beat("n", 2),
    ),
    script(
        "member leaves",
        *SETTLED_PAIR,
        leave("n"),
        described("Assigning"),
        beat("m", 2),
        described("Stable"),
    ),
    script(
        "joins again",
        join("m"),
        join("m"),
        join("n"),
        join("m"),
        described("Reconciling"),
        leave("n"),
        join("n", subscribed_topic_names=["$u"]),
        join("n"),
        described(),
    ),
    script(
        "joins again in a later epoch",
        join("m"),
        leave("m"),
        join("m"),
        beat("m", 3),
        beat("m", 3, subscribed_topic_names=["$u"]),
        beat("m", 3, topic_partitions=[]),
        join("m", "FENCED_MEMBER_EPOCH"),
        join("n", **STATIC_I),
        join("n", "UNRELEASED_INSTANCE_ID", **STATIC_I),
    ),
    script(
        "that is full",
        join("m"),
        join("n"),
        join("o"),
        join("p", "GROUP_MAX_SIZE_REACHED"),
        leave("o"),
        join("p"),
    ),
    script(
        "fences",
        *SETTLED_PAIR,
        beat("m", 3, "FENCED_MEMBER_EPOCH"),
        beat("m", 1, "FENCED_MEMBER_EPOCH"),
        beat("m", 1, "FENCED_MEMBER_EPOCH", topic_partitions=owned(0, 1, 2)),
        beat("m", 1, topic_partitions=[{"topic_id": "$t_id", "partitions": "$kept"}]),
        beat("m", 1, topic_partitions=[]),
        beat("n", 1, "FENCED_MEMBER_EPOCH"),
        beat(NOBODY, 2, "UNKNOWN_MEMBER_ID"),
        beat(NOBODY, -1, "UNKNOWN_MEMBER_ID"),
        beat("m", 2),
    ),
    script(
        "that is not there",
        beat("m", 1, "GROUP_ID_NOT_FOUND"),
        leave("m", "GROUP_ID_NOT_FOUND"),
        leave("m", "GROUP_ID_NOT_FOUND", epoch=-2, instance_id="i"),
        described(),
        *seen(),
    ),
)

REFUSED: Final = (
    script(
        "bad requests",
        join("m", "INVALID_REQUEST", group_id=""),
        join("m", "INVALID_REQUEST", instance_id=""),
        join("m", "INVALID_REQUEST", rack_id=""),
        join("m", "INVALID_REQUEST", rebalance_timeout=-1),
        join("m", "INVALID_REQUEST", subscribed_topic_names=None),
        join("m", "INVALID_REQUEST", topic_partitions=None),
        join("m", "INVALID_REQUEST", topic_partitions=owned(0)),
        join("m", "UNSUPPORTED_ASSIGNOR", server_assignor="no-such"),
        join("m", "UNSUPPORTED_ASSIGNOR", server_assignor=""),
        join("m", "INVALID_REQUEST", epoch=-3),
        beat("", 1, "INVALID_REQUEST"),
        leave("", "INVALID_REQUEST"),
        leave("m", "INVALID_REQUEST", epoch=-2),
        join("m", subscribed_topic_names=[]),
        join("m"),
        beat("m", 2, "UNSUPPORTED_ASSIGNOR", server_assignor="no-such"),
        beat("m", 2, rebalance_timeout=0),
        beat("m", 2, subscribed_topic_names=[]),
    ),
    script(
        "bad requests of members with ids of their own",
        join("", "INVALID_REQUEST"),
        join("m", "INVALID_REQUEST", subscribed_topic_names=None, subscribed_topic_regex=None),
        join("m", "INVALID_REGULAR_EXPRESSION", subscribed_topic_regex="("),
        join("m", subscribed_topic_names=None, subscribed_topic_regex=""),
        versions=(1,),
    ),
)

STATIC: Final = (
    script(
        "static member comes back",
        join("m", **STATIC_I),
        join("n"),
        beat("m", 1, topic_partitions=owned(0, 1, 2), save={"kept": "assignment.topic_partitions[0].partitions"}),
        beat("m", 1, topic_partitions=[{"topic_id": "$t_id", "partitions": "$kept"}]),
        beat("n", 2),
        join("o", "UNRELEASED_INSTANCE_ID", **STATIC_I),
        leave("m", epoch=-2, **STATIC_I),
        described("Reconciling"),
        beat("m", 2, "FENCED_MEMBER_EPOCH", **STATIC_I),
        join("o", **STATIC_I),
        described("Stable"),
        beat("m", 2, "FENCED_INSTANCE_ID", **STATIC_I),
        beat("m", 2, "UNKNOWN_MEMBER_ID"),
        beat("o", 2, **STATIC_I),
        beat("n", 2),
        leave("m", "FENCED_INSTANCE_ID", epoch=-2, **STATIC_I),
        leave("o", epoch=-1, **STATIC_I),
        beat("n", 2, topic_partitions=owned()),
    ),
    script(
        "static member that is not there",
        join("m"),
        beat("n", 1, "UNKNOWN_MEMBER_ID", **STATIC_I),
        leave("m", "UNKNOWN_MEMBER_ID", epoch=-2, **STATIC_I),
        join("n", **STATIC_I),
        leave("m", "FENCED_INSTANCE_ID", epoch=-2, **STATIC_I),
    ),
    script(
        "static member comes back with other topics",
        *new_topic("u"),
        join("m", **STATIC_I),
        leave("m", epoch=-2, **STATIC_I),
        join("o", **STATIC_I, subscribed_topic_names=["$u"]),
        described(),
    ),
)

SUBSCRIPTIONS: Final = (
    script(
        "other topics",
        *new_topic("u", partitions=2),
        join("m"),
        beat("m", 1, subscribed_topic_names=["$t", "$u"]),
        described("Stable"),
        beat("m", 2, subscribed_topic_names=["$u", "$w"]),
        beat("m", 2, topic_partitions=owned(0, 1, topic="u")),
        described("Stable"),
        beat("m", 3, subscribed_topic_names=["$u", "$w"]),
    ),
    script(
        "topic that comes later",
        join("m", subscribed_topic_names=["$t", "$u"]),
        *new_topic("u", partitions=2),
        beat("m", 1, until=("member_epoch", 2)),
        Step(
            api="create_partitions",
            body={"topics": [{"name": "$t", "count": 5, "assignments": None}], "timeout": 10000},
        ),
        beat("m", 2, until=("member_epoch", 3)),
        Step(api="delete_topics", version=6, body={"topics": [{"name": "$u"}], "timeout": 10000}, errors=None),
        beat("m", 3, topic_partitions=owned(0, 1, 2, 3, 4), until=("member_epoch", 4)),
        described(),
    ),
    script(
        "topic that is made anew",
        join("m"),
        Step(api="delete_topics", version=6, body={"topics": [{"name": "$t"}], "timeout": 10000}, errors=None),
        beat("m", 1, topic_partitions=[], until=("member_epoch", 2)),
        *new_topic(partitions=2),
        beat("m", 2, until=("member_epoch", 3)),
        described("Stable"),
    ),
    script(
        "other topics for each member",
        *new_topic("u", partitions=2),
        join("m"),
        join("n", subscribed_topic_names=["$u"]),
        beat("m", 1),
        described("Stable"),
        join("o", subscribed_topic_names=["$t", "$u"]),
        beat("n", 2),
        beat("m", 2),
        described(),
    ),
    # Kafka resolves a regular expression beside the heartbeat, korvet in it: so the epochs are each broker's own.
    script(
        "regular expression",
        join(
            "m",
            subscribed_topic_names=None,
            subscribed_topic_regex="$t",
            until=(FIRST_PLACE, 0),
            save={"epoch": "member_epoch"},
            ignore=("member_epoch",),
        ),
        beat("m", "$epoch", subscribed_topic_regex="$t", ignore=("member_epoch",)),
        beat("m", "$epoch", "INVALID_REGULAR_EXPRESSION", subscribed_topic_regex="[", ignore=("member_epoch",)),
        versions=(1,),
    ),
    script(
        "assignor",
        *new_topic("u", partitions=2),
        join("m", server_assignor="range", subscribed_topic_names=["$t", "$u"]),
        join("n", server_assignor="range", subscribed_topic_names=["$t", "$u"]),
        described("Reconciling"),
        beat("m", 1, server_assignor="uniform"),
        beat("n", 2, server_assignor="uniform"),
        described(),
    ),
)


def group_config(name: str, value: str | None, *errors: str, operation: int = 0, group: str = "$g") -> Step:
    """IncrementalAlterConfigs of a group."""
    changes = [{"name": name, "config_operation": operation, "value": value}]
    resource = {"resource_type": 32, "resource_name": group, "configs": changes}
    return Step(api="incremental_alter_configs", body={"resources": [resource]}, errors=errors)


SHORT_SESSION: Final = group_config("consumer.session.timeout.ms", "1000")

DEADLINES: Final = (
    script(
        "member that is silent",
        group_config("consumer.heartbeat.interval.ms", "500"),
        SHORT_SESSION,
        join("m"),
        described("Empty"),
        beat("m", 1, "UNKNOWN_MEMBER_ID"),
        versions=(1,),
    ),
    script(
        "member that does not give up",
        join("m", rebalance_timeout=500),
        join("n"),
        beat("m", 1, topic_partitions=owned(0, 1, 2)),
        beat("n", 2, until=("member_epoch", 3)),
        beat("m", 1, "UNKNOWN_MEMBER_ID"),
        described("Stable"),
        versions=(1,),
    ),
)


def commit(
    offset: int, *errors: str, member: str = "", epoch: Any = -1, version: int = 9, name: str = "$t", **more: Any
) -> Step:
    """An OffsetCommit of partition 0."""
    row = {"partition_index": 0, "committed_offset": offset, "committed_metadata": ""}
    body = {
        "group_id": "$g", "member_id": member, "generation_id_or_member_epoch": epoch, **more,
        "topics": [{"name": name, "partitions": [row]}],
    }  # fmt: skip
    return Step(api="offset_commit", version=version, body=body, errors=errors)


def fetch(*errors: str, member: str | None = None, epoch: Any = -1, version: int = 9) -> Step:
    """An OffsetFetch of partition 0."""
    topics = [{"name": "$t", "partition_indexes": [0]}]
    group = {"group_id": "$g", "member_id": member, "member_epoch": epoch, "topics": topics}
    body = {"groups": [group]} if version >= 8 else {"group_id": "$g", "topics": topics}
    return Step(api="offset_fetch", version=version, body=body, errors=errors)


def forget(topic: str, *errors: str) -> Step:
    """An OffsetDelete of partition 0 of a topic."""
    body = {"group_id": "$g", "topics": [{"name": topic, "partitions": [{"partition_index": 0}]}]}
    return Step(api="offset_delete", body=body, errors=errors)


def delete(*errors: str) -> Step:
    return Step(api="delete_groups", version=2, body={"groups_names": ["$g"]}, errors=errors)


OFFSETS: Final = (
    script(
        "offsets",
        *new_topic("u"),
        *SETTLED_PAIR,
        commit(1, "UNKNOWN_MEMBER_ID"),
        commit(2, "UNKNOWN_MEMBER_ID", member=NOBODY, epoch=2),
        commit(3, "STALE_MEMBER_EPOCH", member="m", epoch=1),
        commit(4, "STALE_MEMBER_EPOCH", member="m", epoch=3),
        commit(5, "STALE_MEMBER_EPOCH", member="m"),
        commit(6, "UNSUPPORTED_VERSION", member="m", epoch=2, version=8),
        commit(7, "UNSUPPORTED_VERSION", member="m", epoch=2, version=2),
        fetch(),
        commit(8, member="m", epoch=2),
        commit(9, member="n", epoch=2),
        commit(3, member="n", epoch=2, name="$u"),
        fetch(),
        fetch(member="m", epoch=2),
        fetch("STALE_MEMBER_EPOCH", member="m", epoch=1),
        fetch("STALE_MEMBER_EPOCH", member="m", epoch=3),
        fetch("UNKNOWN_MEMBER_ID", member=NOBODY, epoch=2),
        fetch("UNKNOWN_MEMBER_ID", member="", epoch=2),
        fetch(version=8),
        fetch(version=7),
        forget("$t", "GROUP_SUBSCRIBED_TO_TOPIC"),
        forget("$u"),
        delete("NON_EMPTY_GROUP"),
        leave("m"),
        leave("n"),
        commit(10, "UNKNOWN_MEMBER_ID", member="m", epoch=2),
        commit(11),
        fetch(),
        commit(12, version=8),
        fetch("UNKNOWN_MEMBER_ID", member="m", epoch=2),
        forget("$t"),
        delete(),
        delete("GROUP_ID_NOT_FOUND"),
        described(),
        *seen(),
        versions=(1,),
    ),
    script(
        "offsets in a transaction",
        transactions.READY,
        *transactions.GROUP_READY,
        transactions.init(),
        transactions.add_offsets(),
        join("m"),
        *(
            transactions.hold(*errors, version=4, member_id=member, generation_id=epoch)
            for member, epoch, errors in (
                ("m", 7, ("ILLEGAL_GENERATION",)),
                (NOBODY, 1, ("UNKNOWN_MEMBER_ID",)),
                ("m", 1, ()),
                ("", -1, ()),
            )
        ),
        fetch(),
        transactions.offsets("UNSTABLE_OFFSET_COMMIT", stable=True),
        transactions.end(version=3),
        transactions.state("CompleteCommit"),
        fetch(),
        versions=(1,),
    ),
)

DESCRIBED: Final[tuple[dict[str, Any], ...]] = (
    {"group_ids": ["$g", "$h"]},
    {"group_ids": ["$h", "$w"], "include_authorized_operations": True},
    {"group_ids": ["$h", "$h"]},
    {"group_ids": [""]},
    {"group_ids": []},
)

DESCRIBE: Final = (
    Script(
        name="describe consumer groups",
        api="consumer_group_describe",
        steps=(
            *known_topic(3),
            *SETTLED_PAIR,
            join("o", group_id="$h", rack_id="r", server_assignor="range", **STATIC_I),
            *(Step(api="consumer_group_describe", body=body, errors=None) for body in DESCRIBED),
        ),
    ),
    Script(
        name="describe classic groups as consumer groups",
        api="consumer_group_describe",
        steps=(
            *known_topic(1),
            commit(4, version=8),
            described(version=None),
        ),
    ),
    Script(
        name="list consumer groups",
        api="list_groups",
        versions=(4, 5),
        steps=(
            *known_topic(3),
            *SETTLED_PAIR,
            described("Stable"),
            join("o", group_id="$h"),
            leave("o", group_id="$h"),
            *(
                Step(api="list_groups", body=body, errors=None)
                for body in (
                    {},
                    *({"states_filter": [state]} for state in ("Stable", "Empty", "stable", "Reconciling", "Dead")),
                    *({"types_filter": [kind]} for kind in ("consumer", "Consumer", "classic")),
                    {"states_filter": ["Empty"], "types_filter": ["consumer"]},
                )
            ),
        ),
    ),
)


def describe_config(*keys: str, group: str = "$g", **more: Any) -> Step:
    """DescribeConfigs of a group."""
    resource = {"resource_type": 32, "resource_name": group, "configuration_keys": list(keys) or None}
    return Step(api="describe_configs", body={"resources": [resource], **more}, errors=None)


CONSUMER_CONFIGS: Final = ("consumer.session.timeout.ms", "consumer.heartbeat.interval.ms")


def config_reads(name: str, value: str) -> Step:
    """Describe a config of a group, once the broker has seen the change before it."""
    resource = {"resource_type": 32, "resource_name": "$g", "configuration_keys": [name]}
    return Step(api="describe_configs", body={"resources": [resource]}, until=("results[0].configs[0].value", value))


def configured(*types: int, errors: tuple[str, ...] = ()) -> Step:
    """ListConfigResources."""
    return Step(api="list_config_resources", body={"resource_types": list(types)}, errors=errors)


CONFIGS: Final = (
    Script(
        name="list config resources",
        api="list_config_resources",
        steps=(
            *known_topic(1),
            group_config("consumer.session.timeout.ms", "50000"),
            config_reads("consumer.session.timeout.ms", "50000"),
            join("m", group_id="$h"),
            configured(),
            *(configured(kind) for kind in (2, 4, 8, 16, 32)),
            configured(32, 2),
        ),
    ),
    Script(
        name="list config resources refused",
        api="list_config_resources",
        steps=(configured(32, 5, errors=("UNSUPPORTED_VERSION",)), configured(0, errors=("UNSUPPORTED_VERSION",))),
        versions=(1,),
    ),
    Script(
        name="configs of consumer groups",
        api="incremental_alter_configs",
        steps=(
            *known_topic(1),
            describe_config(*CONSUMER_CONFIGS, include_synonyms=True),
            group_config("consumer.session.timeout.ms", "50000"),
            config_reads("consumer.session.timeout.ms", "50000"),
            describe_config(*CONSUMER_CONFIGS, include_synonyms=True),
            group_config("consumer.heartbeat.interval.ms", "7000"),
            config_reads("consumer.heartbeat.interval.ms", "7000"),
            join("m"),
            group_config("consumer.heartbeat.interval.ms", None, operation=1),
            config_reads("consumer.heartbeat.interval.ms", "5000"),
            beat("m", 1),
            group_config("consumer.heartbeat.interval.ms", None, operation=1),
            describe_config(*CONSUMER_CONFIGS),
        ),
    ),
    Script(
        name="configs of consumer groups refused",
        api="incremental_alter_configs",
        steps=(
            group_config("consumer.session.timeout.ms", "999", "INVALID_CONFIG"),
            group_config("consumer.session.timeout.ms", "60001", "INVALID_CONFIG"),
            group_config("consumer.session.timeout.ms", "4000", "INVALID_CONFIG"),
            group_config("consumer.session.timeout.ms", "long", "INVALID_CONFIG"),
            group_config("consumer.session.timeout.ms", None, "INVALID_REQUEST"),
            group_config("consumer.session.timeout.ms", "50000", "INVALID_CONFIG", operation=2),
            group_config("consumer.heartbeat.interval.ms", "499", "INVALID_CONFIG"),
            group_config("consumer.heartbeat.interval.ms", "15001", "INVALID_CONFIG"),
            group_config("no.such.config", "1", "INVALID_CONFIG"),
            group_config("consumer.session.timeout.ms", "50000", "INVALID_REQUEST", group=""),
            describe_config(*CONSUMER_CONFIGS),
            describe_config("no.such.config"),
            describe_config(*CONSUMER_CONFIGS, group=""),
        ),
    ),
)

SCRIPTS: Final = (
    *MEMBERS, *REFUSED, *STATIC, *SUBSCRIPTIONS, *DEADLINES, *OFFSETS, *DESCRIBE, *CONFIGS,
)  # fmt: skip
