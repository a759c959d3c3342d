"""A client's first requests: ApiVersions, Metadata, DescribeTopicPartitions, DescribeCluster, FindCoordinator."""

from typing import Any, Final

from tests.oracle.script import CLOSED, Script, Step
from tests.oracle.scripts.steps import NO_SUCH_ID, new_topic
from tests.oracle.versions import ADVERTISED, supported

CLUSTER: Final = Step(
    "describe_cluster", {"endpoint_type": 1}, save={"cluster": "cluster_id", "node": "brokers[0].broker_id"}
)


def _meant(*errors: str, **meant: Any) -> Step:
    """ApiVersions of a client that means a cluster and a node."""
    body = {"client_software_name": "oracle", "client_software_version": "1", "node_id": -1, **meant}
    return Step("api_versions", body, errors=errors, ignore=("finalized_features_epoch",))


API_VERSIONS: Final = (
    Script(
        "api versions",
        "api_versions",
        Step("api_versions", {"client_software_name": "oracle", "client_software_version": "1.0"},
             ignore=("finalized_features_epoch",)),
    ),
    Script("api versions illegal client name", "api_versions",
           Step("api_versions", {"client_software_name": "a b", "client_software_version": ""}, errors=None)),
    Script("api versions of the future falls back to v0", "api_versions",
           Step("api_versions", sent_version=99, answer_version=0, errors=("UNSUPPORTED_VERSION",)),
           Step("api_versions", errors=("INVALID_REQUEST",)), versions=(4,)),
    Script("api versions of a cluster and a node", "api_versions", CLUSTER,
           _meant(cluster_id="$cluster", node_id="$node"),
           *(_meant("REBOOTSTRAP_REQUIRED", cluster_id=name, node_id="$node") for name in ("", "another")),
           _meant("INVALID_REQUEST", cluster_id="$cluster"), _meant("INVALID_REQUEST", node_id="$node"),
           _meant("INVALID_REQUEST", cluster_id="another", node_id="$node", client_software_name=""),
           Step("metadata", version=12, body={"topics": []}), versions=(5,)),
    Script("api versions of another node", "api_versions", CLUSTER,
           *(_meant("REBOOTSTRAP_REQUIRED", cluster_id="$cluster", node_id=one) for one in (-5, 77)), versions=(5,)),
)  # fmt: skip


def _unsupported(api: str, shaped_by: int, sent: int) -> Script:
    step = Step(api, sent_version=sent, errors=None)
    return Script(f"unsupported {api} v{sent}", api, step, versions=(shaped_by,))


UNSUPPORTED: Final = tuple(
    script
    for api, (low, high) in ADVERTISED.items()
    if api != "api_versions"
    for script in (
        _unsupported(api, high, high + 1),
        *([_unsupported(api, low, low - 1)] if supported(api)[0] == low and low > 0 else []),
    )
)


def _metadata(topics: list[dict[str, Any]] | None, *errors: str, create: bool = False, **more: Any) -> Step:
    body = {"topics": topics, "allow_auto_topic_creation": create, **more}
    return Step("metadata", body, errors=errors)


def _metadata_script(name: str, *steps: Step, versions: range = range(14)) -> Script:
    return Script(f"metadata {name}", "metadata", *steps, versions=tuple(versions))


METADATA: Final = (
    _metadata_script("of one topic", *new_topic(partitions=3), _metadata([{"name": "$t"}])),
    _metadata_script("of two topics, one twice", *new_topic(), *new_topic("u"),
                     _metadata([{"name": "$t"}, {"name": "$u"}, {"name": "$t"}])),
    _metadata_script("of no topic", *new_topic(), _metadata([]), versions=range(1, 14)),
    _metadata_script("of all topics", *new_topic(), _metadata(None), versions=range(1, 14)),
    _metadata_script("of all topics before null means them", _metadata(None, CLOSED), versions=range(1)),
    _metadata_script("of all topics asked with an empty list", *new_topic(), _metadata([]), versions=range(1)),
    _metadata_script("of an unknown topic", *new_topic(),
                     _metadata([{"name": "$t"}, {"name": "$u"}], "UNKNOWN_TOPIC_OR_PARTITION"), versions=range(4, 14)),
    _metadata_script(
        "creates a topic",
        Step("metadata", {"topics": [{"name": "$t"}], "allow_auto_topic_creation": True}, until=("", None)),
    ),
    _metadata_script(
        "of illegal names",
        *(
            _metadata([{"name": name}], "INVALID_TOPIC_EXCEPTION", create=create)
            for name in ("bad name", "", "..", "x" * 250)
            for create in (False, True)
        ),
    ),
    _metadata_script(
        "with authorized operations",
        *new_topic(),
        _metadata(
            [{"name": "$t"}], include_topic_authorized_operations=True, include_cluster_authorized_operations=True
        ),
        versions=range(8, 14),
    ),
    _metadata_script("by id", *new_topic(), *new_topic("u"), _metadata([{"name": None, "topic_id": "$t_id"}]),
                     _metadata([{"name": "$u", "topic_id": None}, {"name": None, "topic_id": "$t_id"}]),
                     versions=range(12, 14)),
    _metadata_script("by an unknown id", _metadata([{"name": None, "topic_id": NO_SUCH_ID}], "UNKNOWN_TOPIC_ID"),
                     versions=range(12, 14)),
    Script("metadata by id and name at a version that has no ids", "metadata",
           Step("metadata", {"topics": [{"name": "$t", "topic_id": NO_SUCH_ID}]}, errors=None), versions=(10, 11)),
)  # fmt: skip


def _partitions(*names: str, errors: tuple[str, ...] = (), **more: Any) -> Step:
    topics = [{"name": name} for name in names]
    return Step("describe_topic_partitions", {"topics": topics, **more}, errors=errors)


TOPIC_PARTITIONS: Final = (
    Script("describe topic partitions", "describe_topic_partitions", *new_topic(partitions=3), *new_topic("u"),
           _partitions("$t"), _partitions("$u", "$t"), _partitions("$t", "$t"),
           _partitions("$t", "$w", errors=("UNKNOWN_TOPIC_OR_PARTITION",)),
           _partitions("bad name", errors=("INVALID_TOPIC_EXCEPTION",)),
           _partitions("$t", "$u", response_partition_limit=2),
           _partitions("$t", "$u", response_partition_limit=2, cursor={"topic_name": "$t", "partition_index": 2}),
           _partitions("$t", "$u", cursor={"topic_name": "$u", "partition_index": 0}),
           *(_partitions("$t", "$u", response_partition_limit=limit) for limit in (-1, 0, 1, 3, 4)),
           _partitions("$t", "$u", cursor={"topic_name": "$t", "partition_index": 9}, response_partition_limit=1),
           _partitions("$t", cursor={"topic_name": "$u", "partition_index": 0}, errors=("INVALID_REQUEST",))),
    Script(
        "describe topic partitions from a negative cursor",
        "describe_topic_partitions",
        *new_topic(),
        Step("describe_topic_partitions",
             {"topics": [{"name": "$t"}], "cursor": {"topic_name": "$t", "partition_index": -1}}, errors=None),
    ),
)  # fmt: skip

DESCRIBE_CLUSTER: Final = (
    Script("describe cluster", "describe_cluster", Step("describe_cluster"),
           Step("describe_cluster", {"include_cluster_authorized_operations": True})),
    Script("describe cluster of other endpoints", "describe_cluster",
           *tuple(Step("describe_cluster", {"endpoint_type": kind}, errors=None) for kind in (2, 3, 0)),
           versions=(1, 2)),
)  # fmt: skip


def _coordinator(*keys: str, kind: int = 0, errors: tuple[str, ...] | None = ()) -> Step:
    body = {"key": keys[0] if keys else "", "coordinator_keys": list(keys), "key_type": kind}
    return Step("find_coordinator", body, errors=errors)


FIND_COORDINATOR: Final = (
    Script("coordinator of a group", "find_coordinator", _coordinator("$g")),
    Script("coordinator of several groups", "find_coordinator", _coordinator("$g", "$h"), _coordinator("$g", "$g"),
           _coordinator(), versions=(4, 5, 6)),
    Script("coordinator of an empty group id", "find_coordinator", _coordinator("", errors=None)),
    Script("coordinator of an unheard of kind", "find_coordinator", _coordinator("$g", kind=9, errors=None),
           versions=(1, 2, 3, 4, 5, 6)),
    Script("coordinator of a share group key that is none", "find_coordinator", _coordinator("$g", kind=2, errors=None),
           versions=(4, 5, 6)),
)  # fmt: skip

SCRIPTS: Final = (
    *API_VERSIONS,
    *UNSUPPORTED,
    *METADATA,
    *TOPIC_PARTITIONS,
    *DESCRIBE_CLUSTER,
    *FIND_COORDINATOR,
)
