"""Allowed differences between Kafka's answers and korvet's, with reasons. docs/compatibility.md shows both tables."""

from dataclasses import KW_ONLY, dataclass
from fnmatch import fnmatchcase
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Free:
    """Fields of any answer whose values two brokers never share.

    compared: `not` (left out), `presence` (absent, empty or negative against anything else).
    """

    fields: tuple[str, ...]
    compared: str
    reason: str


@dataclass(frozen=True, slots=True)
class Difference:
    """A field of one API's answers that korvet fills differently on purpose; the oracle leaves it out.

    path: as in `topics[].partitions[].leader_epoch`; `answer` is the whole answer, a missing one included.
    script: a pattern of script names; `*` is every script. extra: allowed only if Kafka's answer lacks the field.
    """

    api: str
    path: str
    _: KW_ONLY
    reason: str
    script: str = "*"
    extra: bool = False

    def covers(self, api: str, script: str, path: str) -> bool:
        """Whether this row allows the difference."""
        same_path = self.path == path or path.startswith((f"{self.path}.", f"{self.path}[]"))
        return self.api in ("*", api) and fnmatchcase(script, self.script) and (self.path == "answer" or same_path)


FREE: Final = (
    Free(fields=("throttle_time",), compared="not", reason="it depends on the broker's load"),
    Free(fields=("documentation",), compared="presence", reason="each broker has its own wording"),
    Free(
        fields=("node_id", "broker_id", "leader_id", "controller_id", "replica_nodes", "isr_nodes", "host", "port"),
        compared="presence",
        reason="names of nodes and their addresses",
    ),
    Free(
        fields=("cluster_id", "topic_id", "producer_id", "client_instance_id"),
        compared="presence",
        reason="each broker mints its own ids",
    ),
    Free(
        fields=("log_dir", "total_bytes", "usable_bytes"),
        compared="not",
        reason="the directory of a broker's data, and its room",
    ),
    Free(fields=("log_append_time", "transaction_start_time"), compared="presence", reason="the broker's clock"),
)

_REJOINS: Final = (
    "Kafka 4.1 fences a member that lost its epoch and joins again as itself, until its session is over; later "
    "versions and korvet let it join"
)
_GOES_ON: Final = "a group without members that changes its protocol keeps its epochs; in Kafka it is a new group"
_OWN_CONFIGS: Final = "korvet has configs of topics that Kafka lacks; their names begin with korvet."

_CATALOG_VERSION: Final = "it is the catalog's version, which grows with each change; Kafka has an offset"

DIFFERENCES: Final = (
    *(
        Difference(api="find_coordinator", path=path, reason="Kafka's message fits any request that is malformed")
        for path in ("error_message", "coordinators[].error_message")
    ),
    Difference("incremental_alter_configs", "responses[].error_message", script="configs of consumer groups refused",
               reason="korvet's message has the bound itself if it is Kafka's default, and Kafka's names the broker's "
               "config"),
    Difference("consumer_group_describe", "groups[].error_message",
               script="migration classic group that is no consumers'",
               reason="Kafka says not found, and korvet that it is not a consumer group"),
    Difference("create_topics", "topics[].configs[]", extra=True, reason=_OWN_CONFIGS),
    Difference("describe_configs", "results[].configs[]", script="* every key", extra=True, reason=_OWN_CONFIGS),
    Difference("describe_configs", "results[].configs[]", script="configs of *groups*", extra=True,
               reason="korvet has the configs of groups that came with Kafka 4.3"),
    Difference("*", "answer", script="unsupported *",
               reason="Kafka closes the connection; korvet answers UNSUPPORTED_VERSION if the version has a field for "
               "it"),
    Difference("api_versions", "supported_features", reason="korvet announces a feature only once all of it works"),
    Difference("api_versions", "finalized_features", reason="korvet announces a feature only once all of it works"),
    Difference("api_versions", "finalized_features_epoch",
               reason="it counts the changes of korvet's features; in Kafka it counts the changes of the cluster's "
               "metadata"),
    Difference("describe_configs", "results[].configs[].synonyms", script="configs of *groups*",
               reason="korvet shows the broker's values, as Kafka 4.4 does, and Kafka 4.1 shows none"),
    Difference("incremental_alter_configs", "responses[].error_message", script="share group configs",
               reason="Kafka 4.4 has other words for a value out of range, and korvet has those of 4.1"),
    Difference("share_group_heartbeat", "error_code", script="share group that is not there",
               reason="korvet answers UNKNOWN_MEMBER_ID to members of a group that Redis lost, so they join again; "
               "clients end at Kafka's GROUP_ID_NOT_FOUND"),
    *(Difference(api, "responses[].partitions[].current_leader",
                 reason="with most errors Kafka names the leader 0, to which franz-go then moves the partition")
      for api in ("share_fetch", "share_acknowledge")),
    Difference("share_fetch", "responses[].partitions[].error_code",
               script="share group records of a group that is not there",
               reason="Kafka fails with UNKNOWN_SERVER_ERROR; korvet says GROUP_ID_NOT_FOUND"),
    Difference("share_fetch", "responses[].partitions[].error_code",
               script="share group reads a topic that is made again",
               reason="korvet's share sessions have topics by their ids, so a deleted one is UNKNOWN_TOPIC_ID; "
               "Kafka's have names, and say UNKNOWN_TOPIC_OR_PARTITION"),
    Difference("share_fetch", "responses[].partitions[].records",
               script="share group reads transactions that are aborted, read_committed",
               reason="korvet sends aborted batches too, as to other consumers; Kafka leaves out those at the "
               "beginning"),
    *(
        Difference(
            api="describe_share_group_offsets",
            path=f"groups[].topics[].partitions[].{field}",
            script="share group offsets before any acknowledgement",
            reason="korvet shows the start once records are acquired, and Kafka once some are acknowledged",
        )
        for field in ("start_offset", "lag")
    ),
    Difference("share_acknowledge", "responses[].partitions[].error_message", script="share group re*",
               reason="the function that decides has codes and no messages"),
    Difference("api_versions", "answer", script="api versions of another node",
               reason="every front-end stands for every node of its cluster, so korvet compares the cluster alone"),
    Difference("describe_producers", "topics[].partitions[].active_producers[].coordinator_epoch",
               reason="korvet's coordinators have no epochs, so it is 0 for every producer of a transaction"),
    Difference("get_telemetry_subscriptions", "delta_temporality",
               reason="korvet wants sums since a client's start, for any front-end may get the next push; Kafka wants "
               "changes"),
    Difference("get_telemetry_subscriptions", "subscription_id", script="rights",
               reason="it is computed from the client instance id, and here each broker makes one up"),
    Difference("fetch", "session_id",
               reason="korvet keeps no fetch sessions: its front-ends hold no state, so it answers a new session with "
               "id 0"),
    Difference("fetch", "responses[].partitions[].current_leader", script="rights",
               reason="to a client that says it is a follower Kafka names the leader; korvet has no followers, and "
               "refuses it"),
    Difference("offset_fetch", "topics[]", script="rights", extra=True,
               reason="Kafka refuses a group by the error for all; up to version 7 korvet refuses its partitions as "
               "well, because aiokafka looks at these alone"),
    Difference("produce", "responses[].partition_responses[].record_errors",
               reason="korvet names records without a key and those that break a schema, and no others"),
    Difference("produce", "responses[].partition_responses[].error_message", script="produce undecodable *",
               reason="korvet tells what is wrong with a stream that cannot be decompressed; Kafka has no message"),
    Difference("produce", "responses[].partition_responses[].log_append_time", script="produce *duplicate*",
               reason="for a duplicate batch Kafka shows the first one's newest timestamp; korvet shows -1, as for "
               "any other"),
    Difference("*", "answer", script="produce duplicate topics in one request",
               reason="if a request names a topic twice, Kafka appends one of the two, and korvet both"),
    Difference("incremental_alter_configs", "responses[]", script="incremental configs by an unknown operation",
               reason="Kafka fails with UNKNOWN_SERVER_ERROR; korvet says INVALID_REQUEST"),
    Difference("describe_configs", "results[].configs[].read_only", script="describe configs of a broker",
               reason="broker configs are one set for all front-ends and can be changed while they run"),
    *(
        Difference(
            api="describe_configs",
            path=f"results[].configs[].{field}",
            script="describe configs of a broker's address",
            reason="Kafka shows the value in the server's file, here none; korvet shows the address of Metadata",
        )
        for field in ("value", "config_source", "synonyms")
    ),
    *(
        Difference(api="describe_quorum", path=path, script="describe quorum", reason=reason)
        for path, reason in (
            ("topics[].partitions[].leader_epoch", "korvet has no elections, so it is 1; a busy Kafka has some"),
            ("topics[].partitions[].high_watermark", _CATALOG_VERSION),
            ("topics[].partitions[].current_voters[].log_end_offset", _CATALOG_VERSION),
            ("topics[].partitions[].current_voters[].replica_directory_id", "each broker mints its own ids"),
            ("topics[].partitions[].current_voters[].last_fetch_timestamp", "the broker's clock"),
            ("topics[].partitions[].current_voters[].last_caught_up_timestamp", "the broker's clock"),
            (
                "nodes[].listeners[]",
                "korvet has no controllers apart from brokers, so it shows the brokers' listener",
            ),
        )
    ),
    Difference("consumer_group_heartbeat", "answer", script="consumer group joins again in *", reason=_REJOINS),
    Difference("consumer_group_heartbeat", "error_code", script="consumer group that is not there",
               reason="korvet answers UNKNOWN_MEMBER_ID to members of a group that Redis lost, so they join again; "
               "clients end at Kafka's GROUP_ID_NOT_FOUND"),
    Difference("consumer_group_heartbeat", "error_code",
               script="migration static member changes to the classic protocol",
               reason="korvet answers UNKNOWN_MEMBER_ID to members that a group lost when it became a classic one, if "
               "they may join it again; clients end at Kafka's GROUP_ID_NOT_FOUND"),
    *(
        Difference(api=api, path=path, script="migration empty *", reason=_GOES_ON)
        for api, path in (
            ("consumer_group_heartbeat", "member_epoch"),
            ("consumer_group_describe", "groups[].group_epoch"),
            ("consumer_group_describe", "groups[].assignment_epoch"),
            ("consumer_group_describe", "groups[].members[].member_epoch"),
            ("join_group", "generation_id"),
        )
    ),
    Difference("describe_groups", "groups[]", script="administer a group that its first member could not join",
               reason="Kafka makes the group before it refuses its first member, and drops it later; korvet does not "
               "make it"),
    Difference("list_groups", "groups[]", script="administer a group that its first member could not join",
               reason="Kafka makes the group before it refuses its first member, and drops it later; korvet does not "
               "make it"),
)  # fmt: skip
