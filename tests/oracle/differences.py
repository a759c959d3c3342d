"""What may differ between Apache Kafka's answers and korvet's, and why. docs/compatibility.md mirrors both tables."""

from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Free:
    """Fields, wherever they stand, whose values two brokers never share.

    compared: `not` (left out), `presence` (absent, empty or negative against anything else).
    """

    fields: tuple[str, ...]
    compared: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A field of one API's answers that korvet fills differently on purpose; the oracle leaves it out.

    path: as in `topics[].partitions[].leader_epoch`; `answer` is the whole answer, a missing one included.
    script: a pattern of script names; `*` is every script. extra: only where Kafka's has none.
    """

    api: str
    path: str
    reason: str
    script: str = "*"
    extra: bool = False

    def covers(self, api: str, script: str, path: str) -> bool:
        """Whether this row allows the difference."""
        same_path = self.path == path or path.startswith((f"{self.path}.", f"{self.path}[]"))
        return self.api in ("*", api) and fnmatchcase(script, self.script) and (self.path == "answer" or same_path)


FREE: Final = (
    Free(fields=("throttle_time",), compared="not", reason="depends on load"),
    Free(
        fields=("error_message", "batch_index_error_message", "documentation"),
        compared="presence",
        reason="the wording is each broker's own",
    ),
    Free(
        fields=("node_id", "broker_id", "leader_id", "controller_id", "replica_nodes", "isr_nodes", "host", "port"),
        compared="presence",
        reason="names of nodes and their addresses",
    ),
    Free(fields=("cluster_id", "topic_id", "producer_id"), compared="presence", reason="ids are minted by each broker"),
    Free(
        fields=("log_dir", "total_bytes", "usable_bytes"),
        compared="not",
        reason="where a broker keeps its data, and how much room is there",
    ),
    Free(fields=("log_append_time", "transaction_start_time"), compared="presence", reason="the broker's clock"),
)

_REJOINS: Final = (
    "Kafka 4.1 fences a member that lost its epoch and joins again as itself until its session is over, as later "
    "versions do not; korvet lets it join"
)
_GOES_ON: Final = "a group without members that changes its protocol goes on with its epochs; in Kafka it is a new one"
_OWN_CONFIGS: Final = "korvet has configs of topics that Kafka has not; their names begin with korvet."

DIFFERENCES: Final = (
    Difference(api="create_topics", path="topics[].configs[]", reason=_OWN_CONFIGS, extra=True),
    Difference(
        api="describe_configs",
        path="results[].configs[]",
        reason=_OWN_CONFIGS,
        script="* every key",
        extra=True,
    ),
    Difference(
        api="*",
        path="answer",
        script="unsupported *",
        reason="Kafka closes the connection; korvet answers UNSUPPORTED_VERSION where the version has a place for it",
    ),
    Difference(
        api="api_versions",
        path="supported_features",
        reason="korvet announces a feature only once all of it works",
    ),
    Difference(
        api="api_versions",
        path="finalized_features",
        reason="korvet announces a feature only once all of it works",
    ),
    Difference(
        api="api_versions",
        path="finalized_features_epoch",
        reason="counts the changes of what korvet announces, not those of a cluster",
    ),
    Difference(
        api="describe_producers",
        path="topics[].partitions[].active_producers[].coordinator_epoch",
        reason="coordinators have no epochs here, so it is 0 for every producer of a transaction",
    ),
    Difference(
        api="fetch",
        path="session_id",
        reason="korvet keeps no fetch sessions: its front-ends hold no state, so it answers a new session with id 0",
    ),
    Difference(
        api="produce",
        path="responses[].partition_responses[].record_errors",
        reason="only batches of topics that ask for it are decoded; of others korvet names no record",
    ),
    Difference(
        api="*",
        path="answer",
        script="produce undecodable *",
        reason="batches are stored as they came and never decompressed; what is broken inside, consumers find",
    ),
    Difference(
        api="produce",
        path="responses[].partition_responses[].log_append_time",
        script="produce *duplicate*",
        reason="for a duplicate batch Kafka shows the first one's newest timestamp here, korvet -1 as for any other",
    ),
    Difference(
        api="*",
        path="answer",
        script="produce duplicate topics in one request",
        reason="a topic that stands twice in a request: Kafka appends one of the two, korvet both",
    ),
    Difference(
        api="incremental_alter_configs",
        path="responses[]",
        script="incremental configs by an unknown operation",
        reason="Kafka fails with UNKNOWN_SERVER_ERROR; korvet says INVALID_REQUEST",
    ),
    Difference(
        api="describe_configs",
        path="results[].configs[].read_only",
        script="describe configs of a broker",
        reason="broker configs are one set for all front-ends and can be changed while they run",
    ),
    Difference(
        api="consumer_group_heartbeat", path="answer", script="consumer group joins again in *", reason=_REJOINS
    ),
    Difference(
        api="consumer_group_heartbeat",
        path="error_code",
        script="consumer group that is not there",
        reason="members of a group that Redis lost are UNKNOWN_MEMBER_ID and join again; after Kafka's "
        "GROUP_ID_NOT_FOUND clients end",
    ),
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
    Difference(
        api="describe_groups",
        path="groups[]",
        script="administer a group that its first member could not join",
        reason="Kafka makes the group before it refuses its first member, and drops it later; korvet does not make it",
    ),
    Difference(
        api="list_groups",
        path="groups[]",
        script="administer a group that its first member could not join",
        reason="Kafka makes the group before it refuses its first member, and drops it later; korvet does not make it",
    ),
)
