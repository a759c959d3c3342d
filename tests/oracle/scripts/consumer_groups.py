"""Groups of the consumer protocol (KIP-848): the heartbeats of their members.

Source: GroupCoordinatorService, GroupMetadataManager.consumerGroupHeartbeat, CurrentAssignmentBuilder, ConsumerGroup.
"""

from typing import Final

from tests.oracle.script import Step
from tests.oracle.scripts.consumer_steps import (
    FIRST_PARTITION,
    FULL_REQUEST,
    SETTLED_PAIR,
    STATIC_I,
    beat,
    described,
    group_config,
    join,
    known_topic,
    leave,
    owned,
    script,
    seen,
)
from tests.oracle.scripts.membership import NOBODY
from tests.oracle.scripts.steps import new_topic

MEMBERS: Final = (
    script("of one member", join("m"), described("Stable"), *seen(), beat("m", 1),
           beat("m", 1, topic_partitions=owned(0, 1, 2)),
           beat("m", 1, **{**FULL_REQUEST, "topic_partitions": owned(0, 1, 2)}), leave("m"), described("Empty"),
           *seen(), leave("m", "UNKNOWN_MEMBER_ID"), join("m")),
    script("gives the first member its id", join("", save={"m": "member_id"}), beat("$m", 1), leave("$m"),
           versions=(0,)),
    script("second member", join("m"), join("n"), described("Reconciling"), beat("n", 2),
           beat("m", 1, topic_partitions=owned(0, 1, 2), save={"kept": "assignment.topic_partitions[0].partitions"}),
           beat("m", 1, topic_partitions=owned(0, 1, 2)), beat("m", 1), described("Reconciling"), beat("n", 2),
           beat("m", 1, topic_partitions=[{"topic_id": "$t_id", "partitions": "$kept"}]), described("Reconciling"),
           beat("n", 2), described("Stable"), beat("m", 2), beat("n", 2)),
    script("member leaves", *SETTLED_PAIR, leave("n"), described("Assigning"), beat("m", 2), described("Stable")),
    script("joins again", join("m"), join("m"), join("n"), join("m"), described("Reconciling"), leave("n"),
           join("n", subscribed_topic_names=["$u"]), join("n"), described()),
    script("joins again in a later epoch", join("m"), leave("m"), join("m"), beat("m", 3),
           beat("m", 3, subscribed_topic_names=["$u"]), beat("m", 3, topic_partitions=[]),
           join("m", "FENCED_MEMBER_EPOCH"), join("n", **STATIC_I), join("n", "UNRELEASED_INSTANCE_ID", **STATIC_I)),
    script("that is full", join("m"), join("n"), join("o"), join("p", "GROUP_MAX_SIZE_REACHED"), leave("o"), join("p")),
    script("fences", *SETTLED_PAIR, beat("m", 3, "FENCED_MEMBER_EPOCH"), beat("m", 1, "FENCED_MEMBER_EPOCH"),
           beat("m", 1, "FENCED_MEMBER_EPOCH", topic_partitions=owned(0, 1, 2)),
           beat("m", 1, topic_partitions=[{"topic_id": "$t_id", "partitions": "$kept"}]),
           beat("m", 1, topic_partitions=[]), beat("n", 1, "FENCED_MEMBER_EPOCH"), beat(NOBODY, 2, "UNKNOWN_MEMBER_ID"),
           beat(NOBODY, -1, "UNKNOWN_MEMBER_ID"), beat("m", 2)),
    script("that is not there", beat("m", 1, "GROUP_ID_NOT_FOUND"), leave("m", "GROUP_ID_NOT_FOUND"),
           leave("m", "GROUP_ID_NOT_FOUND", epoch=-2, instance_id="i"), described(), *seen()),
)  # fmt: skip

REFUSED: Final = (
    script("bad requests", join("m", "INVALID_REQUEST", group_id=""), join("m", "INVALID_REQUEST", group_id="  "),
           join("m", "INVALID_REQUEST", instance_id=""), join("m", "INVALID_REQUEST", rack_id=""),
           join("m", "INVALID_REQUEST", rebalance_timeout=-1),
           join("m", "INVALID_REQUEST", subscribed_topic_names=None),
           join("m", "INVALID_REQUEST", topic_partitions=None), join("m", "INVALID_REQUEST", topic_partitions=owned(0)),
           join("m", "UNSUPPORTED_ASSIGNOR", server_assignor="no-such"),
           join("m", "UNSUPPORTED_ASSIGNOR", server_assignor=""), join("m", "INVALID_REQUEST", epoch=-3),
           beat("", 1, "INVALID_REQUEST"), leave("", "INVALID_REQUEST"), leave("m", "INVALID_REQUEST", epoch=-2),
           join("m", subscribed_topic_names=[]), join("m"),
           beat("m", 2, "UNSUPPORTED_ASSIGNOR", server_assignor="no-such"), beat("m", 2, rebalance_timeout=0),
           beat("m", 2, subscribed_topic_names=[])),
    script(
        "bad requests of members with ids of their own",
        join("", "INVALID_REQUEST"),
        join(" \t", "INVALID_REQUEST"),
        join("m", "INVALID_REQUEST", subscribed_topic_names=None, subscribed_topic_regex=None),
        *(
            join("m", "INVALID_REGULAR_EXPRESSION", subscribed_topic_regex=regex)
            for regex in ("(", "[a", "*", "a\\", "(?=a)")
        ),
        join("m", subscribed_topic_names=None, subscribed_topic_regex=""),
        versions=(1,),
    ),
)  # fmt: skip

STATIC: Final = (
    script("static member comes back", join("m", **STATIC_I), join("n"),
           beat("m", 1, topic_partitions=owned(0, 1, 2), save={"kept": "assignment.topic_partitions[0].partitions"}),
           beat("m", 1, topic_partitions=[{"topic_id": "$t_id", "partitions": "$kept"}]), beat("n", 2),
           join("o", "UNRELEASED_INSTANCE_ID", **STATIC_I), leave("m", epoch=-2, **STATIC_I), described("Reconciling"),
           beat("m", 2, "FENCED_MEMBER_EPOCH", **STATIC_I), join("o", **STATIC_I), described("Stable"),
           beat("m", 2, "FENCED_INSTANCE_ID", **STATIC_I), beat("m", 2, "UNKNOWN_MEMBER_ID"), beat("o", 2, **STATIC_I),
           beat("n", 2), leave("m", "FENCED_INSTANCE_ID", epoch=-2, **STATIC_I), leave("o", epoch=-1, **STATIC_I),
           beat("n", 2, topic_partitions=owned())),
    script("static member that is not there", join("m"), beat("n", 1, "UNKNOWN_MEMBER_ID", **STATIC_I),
           leave("m", "UNKNOWN_MEMBER_ID", epoch=-2, **STATIC_I), join("n", **STATIC_I),
           leave("m", "FENCED_INSTANCE_ID", epoch=-2, **STATIC_I)),
    script("static member comes back with other topics", *new_topic("u"), join("m", **STATIC_I),
           leave("m", epoch=-2, **STATIC_I), join("o", **STATIC_I, subscribed_topic_names=["$u"]), described()),
)  # fmt: skip

SUBSCRIPTIONS: Final = (
    script("other topics", *new_topic("u", partitions=2), join("m"), beat("m", 1, subscribed_topic_names=["$t", "$u"]),
           described("Stable"), beat("m", 2, subscribed_topic_names=["$u", "$w"]),
           beat("m", 2, topic_partitions=owned(0, 1, topic="u")), described("Stable"),
           beat("m", 3, subscribed_topic_names=["$u", "$w"])),
    script("topic that comes later", join("m", subscribed_topic_names=["$t", "$u"]), *new_topic("u", partitions=2),
           beat("m", 1, until=("member_epoch", 2)),
           Step("create_partitions", {"topics": [{"name": "$t", "count": 5, "assignments": None}], "timeout": 10000}),
           beat("m", 2, until=("member_epoch", 3)),
           Step("delete_topics", version=6, body={"topics": [{"name": "$u"}], "timeout": 10000}, errors=None),
           beat("m", 3, topic_partitions=owned(0, 1, 2, 3, 4), until=("member_epoch", 4)), described()),
    script("topic that is made anew", join("m"),
           Step("delete_topics", version=6, body={"topics": [{"name": "$t"}], "timeout": 10000}, errors=None),
           beat("m", 1, topic_partitions=[], until=("member_epoch", 2)), *new_topic(partitions=2),
           beat("m", 2, until=("member_epoch", 3)), described("Stable")),
    script("other topics for each member", *new_topic("u", partitions=2), join("m"),
           join("n", subscribed_topic_names=["$u"]), beat("m", 1), described("Stable"),
           join("o", subscribed_topic_names=["$t", "$u"]), beat("n", 2), beat("m", 2), described()),
    # Kafka resolves a regular expression beside the heartbeat, korvet in the next one, so their epochs differ.
    script(
        "regular expression",
        join(
            "m",
            subscribed_topic_names=None,
            subscribed_topic_regex="$t",
            until=(FIRST_PARTITION, 0),
            save={"epoch": "member_epoch"},
            ignore=("member_epoch",),
        ),
        beat("m", "$epoch", subscribed_topic_regex="$t", ignore=("member_epoch",)),
        beat("m", "$epoch", "INVALID_REGULAR_EXPRESSION", subscribed_topic_regex="[", ignore=("member_epoch",)),
        versions=(1,),
    ),
    script("assignor", *known_topic(2, "u"), join("m", server_assignor="range", subscribed_topic_names=["$t", "$u"]),
           join("n", server_assignor="range", subscribed_topic_names=["$t", "$u"]), described("Reconciling"),
           beat("m", 1, server_assignor="uniform"), beat("n", 2, server_assignor="uniform"), described()),
)  # fmt: skip


SHORT_SESSION: Final = group_config("consumer.session.timeout.ms", "1000")

DEADLINES: Final = (
    script("member that is silent", group_config("consumer.heartbeat.interval.ms", "500"), SHORT_SESSION,
           group_config("consumer.heartbeat.interval.ms", "600"), join("m", until=("heartbeat_interval", 600)),
           described("Empty"), beat("m", 1, "UNKNOWN_MEMBER_ID"), versions=(1,)),
    script("member that does not give up", join("m", rebalance_timeout=3000), join("n"),
           beat("m", 1, topic_partitions=owned(0, 1, 2)), beat("n", 2, until=("member_epoch", 3)),
           beat("m", 1, "UNKNOWN_MEMBER_ID"), described("Stable"), versions=(1,)),
)  # fmt: skip

SCRIPTS: Final = (*MEMBERS, *REFUSED, *STATIC, *SUBSCRIPTIONS, *DEADLINES)
