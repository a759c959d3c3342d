"""CreateTopics, DeleteTopics, CreatePartitions. Source: ReplicationControlManager."""

from typing import Any, Final

from tests.oracle.script import Script, Step
from tests.oracle.scripts.steps import NO_SUCH_ID, new_topic


def _topic(name: str = "$t", partitions: int = 1, replicas: int = 1, **more: Any) -> dict[str, Any]:
    return {"name": name, "num_partitions": partitions, "replication_factor": replicas, **more}


def _create(*topics: dict[str, Any], errors: tuple[str, ...] | None = (), **more: Any) -> Step:
    return Step("create_topics", {"topics": list(topics), "timeout": 10000, **more}, errors=errors)


def _seen(*names: str, errors: tuple[str, ...] = ()) -> Step:
    """The topics as Metadata shows them, after it has caught up."""
    until = ("topics[0].error_code", "UNKNOWN_TOPIC_OR_PARTITION") if errors else ("", None)
    body = {"topics": [{"name": name} for name in names], "allow_auto_topic_creation": False}
    return Step("metadata", version=12, body=body, until=until, errors=errors)


def _create_script(name: str, *steps: Step, versions: tuple[int, ...] = ()) -> Script:
    return Script(f"create topic {name}", "create_topics", *steps, versions=versions)


ILLEGAL: Final = ("", ".", "..", "a/b", "a b", "é", "x" * 250)
GONE: Final = ("UNKNOWN_TOPIC_OR_PARTITION",)
NODE: Final = Step("metadata", {"topics": []}, save={"node": "brokers[0].node_id"})


def _assigned(*brokers: Any, partitions: int = -1, replicas: int = -1, first: int = 0) -> dict[str, Any]:
    rows = [{"partition_index": first + i, "broker_ids": ids} for i, ids in enumerate(brokers)]
    return _topic(partitions=partitions, replicas=replicas, assignments=rows)


CREATE: Final = (
    _create_script("plainly", _create(_topic(partitions=3)), _seen("$t")),
    _create_script("with defaults", _create(_topic(partitions=-1, replicas=-1)), _seen("$t"), versions=(4, 5, 6, 7)),
    _create_script(
        "with configs",
        _create(
            _topic(
                configs=[
                    {"name": "retention.ms", "value": "70000"},
                    {"name": "retention.ms", "value": " 60000 "},
                    {"name": "message.timestamp.type", "value": "LogAppendTime"},
                ]
            )
        ),
        _seen("$t"),
    ),
    _create_script("compacted", _create(_topic(configs=[{"name": "cleanup.policy", "value": "compact"}]))),
    _create_script(
        "that exists",
        *new_topic(),
        _create(_topic(partitions=0, configs=[{"name": "no.such", "value": "1"}]), errors=("TOPIC_ALREADY_EXISTS",)),
    ),
    _create_script(
        "with several mistakes",
        _create(_topic(partitions=0, replicas=0), errors=("INVALID_REPLICATION_FACTOR",)),
        _create(_topic(partitions=0, configs=[{"name": "retention.ms", "value": "x"}]), errors=("INVALID_CONFIG",)),
        _create(_topic(partitions=10_001), errors=("POLICY_VIOLATION",)),
        _create(_topic("__cluster_metadata"), errors=("INVALID_REQUEST",)),
        _seen("$t", errors=GONE),
    ),
    _create_script(
        "several, some good",
        *new_topic(),
        _create(
            _topic("$u", 2), _topic(), _topic("bad/name"), errors=("TOPIC_ALREADY_EXISTS", "INVALID_TOPIC_EXCEPTION")
        ),
        _seen("$u"),
    ),
    _create_script(
        "twice in one request",
        _create(_topic(), _topic(), _topic("$u"), errors=("INVALID_REQUEST",)),
        _seen("$u"),
        _seen("$t", errors=GONE),
    ),
    _create_script("none", _create()),
    _create_script(
        "with an illegal name",
        *(_create(_topic(name), errors=("INVALID_TOPIC_EXCEPTION",)) for name in ILLEGAL),
    ),
    _create_script(
        "with an impossible number",
        *(_create(_topic(partitions=count), errors=("INVALID_PARTITIONS",)) for count in (0, -2)),
        *(_create(_topic(replicas=count), errors=("INVALID_REPLICATION_FACTOR",)) for count in (0, 2, -2)),
    ),
    _create_script(
        "with a wrong config",
        *(
            _create(_topic(configs=[{"name": name, "value": value}]), errors=("INVALID_CONFIG",))
            for name, value in (
                ("no.such.config", "1"),
                ("retention.ms", "soon"),
                ("retention.ms", "-2"),
                ("cleanup.policy", "burn"),
                ("compression.type", "rar"),
                ("retention.ms", None),
            )
        ),
        _seen("$t", errors=GONE),
    ),
    _create_script("validated only", _create(_topic(partitions=2), validate_only=True), _seen("$t", errors=GONE)),
    _create_script(
        "validated only and refused", _create(_topic(partitions=0), validate_only=True, errors=("INVALID_PARTITIONS",))
    ),
    _create_script("assigned", NODE, _create(_assigned(["$node"], ["$node"])), _seen("$t")),
    _create_script(
        "assigned with counts too",
        NODE,
        _create(_assigned(["$node"], partitions=1), errors=("INVALID_REQUEST",)),
        _create(_assigned(["$node"], replicas=1), errors=("INVALID_REQUEST",)),
        _create(
            _topic(partitions=-1, replicas=-1, assignments=[{"partition_index": 0, "broker_ids": ["$node"]}] * 2),
            errors=("INVALID_REPLICA_ASSIGNMENT",),
        ),
    ),
    _create_script("assigned to an unknown node", _create(_assigned([4711]), errors=("INVALID_REPLICA_ASSIGNMENT",))),
    _create_script(
        "assigned from partition 1",
        NODE,
        _create(_assigned(["$node"], first=1), errors=("INVALID_REPLICA_ASSIGNMENT",)),
    ),
    _create_script("assigned to nobody", _create(_assigned([]), errors=("INVALID_REPLICA_ASSIGNMENT",))),
    _create_script(
        "assigned to a node twice", NODE, _create(_assigned(["$node", "$node"]), errors=("INVALID_REPLICA_ASSIGNMENT",))
    ),
)


def _delete(*names: Any, ids: tuple[Any, ...] = (), errors: tuple[str, ...] | None = ()) -> Step:
    topics = [{"name": name} for name in names] + [{"name": None, "topic_id": topic_id} for topic_id in ids]
    return Step("delete_topics", {"topic_names": list(names), "topics": topics, "timeout": 10000}, errors=errors)


def _delete_script(name: str, *steps: Step, start: int = 1) -> Script:
    return Script(f"delete topic {name}", "delete_topics", *steps, versions=tuple(range(start, 7)))


DELETE: Final = (
    _delete_script("plainly", *new_topic(), _delete("$t"), _seen("$t", errors=GONE)),
    _delete_script("that does not exist", _delete("$t", errors=GONE)),
    _delete_script("and one that does not exist", *new_topic(), _delete("$t", "$u", errors=GONE)),
    _delete_script("twice in one request", *new_topic(), _delete("$t", "$t", errors=None)),
    _delete_script("none", _delete()),
    _delete_script("with an illegal name", _delete("bad name", errors=None)),
    _delete_script("by id", *new_topic(), _delete(ids=("$t_id",)), _seen("$t", errors=GONE), start=6),
    _delete_script("by an unknown id", _delete(ids=(NO_SUCH_ID,), errors=("UNKNOWN_TOPIC_ID",)), start=6),
    _delete_script(
        "in every wrong way at once",
        *new_topic(),
        *new_topic("u"),
        _delete("$t", "bad name", ids=("$t_id", "$u_id", "$u_id", NO_SUCH_ID, None), errors=None),
        _seen("$t"),
        _seen("$u"),
        _delete("$t", ids=("$u_id",)),
        _seen("$t", errors=GONE),
        _seen("$u", errors=GONE),
        start=6,
    ),
    _delete_script(
        "by id and by name",
        *new_topic(),
        Step("delete_topics", {"topics": [{"name": "$t", "topic_id": "$t_id"}], "timeout": 10000}, errors=None),
        start=6,
    ),
    _delete_script(
        "and create it again",
        *new_topic(),
        _delete("$t"),
        _seen("$t", errors=GONE),
        *new_topic(),
    ),
)


def _grow(count: int, *errors: str, name: str = "$t", nodes: Any = None, **more: Any) -> Step:
    topic = {"name": name, "count": count, "assignments": nodes}
    return Step("create_partitions", {"topics": [topic], "timeout": 10000, **more}, errors=errors)


def _at(*brokers: Any) -> list[dict[str, Any]]:
    return [{"broker_ids": ids} for ids in brokers]


PARTITIONS: Final = (
    Script(
        "create partitions",
        "create_partitions",
        *new_topic(partitions=2),
        _grow(4),
        Step("metadata", version=12, body={"topics": [{"name": "$t"}]},
             until=("topics[0].partitions[3].error_code", "NONE")),
    ),
    Script("create partitions refused", "create_partitions", *new_topic(partitions=2), _grow(1, "INVALID_PARTITIONS"),
           _grow(2, "INVALID_PARTITIONS"), _grow(0, "INVALID_PARTITIONS"), _grow(-1, "INVALID_PARTITIONS"),
           _grow(3, "UNKNOWN_TOPIC_OR_PARTITION", name="$u"),
           _grow(4, "INVALID_REPLICA_ASSIGNMENT", nodes=_at(["$node"])),
           _grow(3, "INVALID_REPLICA_ASSIGNMENT", nodes=_at([4711])),
           _grow(3, "INVALID_REPLICA_ASSIGNMENT", nodes=_at([])), _grow(3, "INVALID_REPLICA_ASSIGNMENT", nodes=[]),
           _seen("$t")),
    Script(
        "create partitions assigned and validated only",
        "create_partitions",
        *new_topic(),
        _grow(3, validate_only=True),
        _grow(1, "INVALID_PARTITIONS", validate_only=True),
        _grow(2, nodes=_at(["$node"])),
        Step("metadata", version=12, body={"topics": [{"name": "$t"}]},
             until=("topics[0].partitions[1].error_code", "NONE")),
    ),
    Script(
        "create partitions of a topic twice in one request",
        "create_partitions",
        *new_topic(),
        *new_topic("w"),
        Step("create_partitions",
             {"topics": [{"name": name, "count": 2} for name in ("$t", "$u", "$w", "$t")], "timeout": 10000},
             errors=("INVALID_REQUEST", "UNKNOWN_TOPIC_OR_PARTITION")),
        Step("metadata", version=12, body={"topics": [{"name": "$t"}, {"name": "$w"}]},
             until=("topics[1].partitions[1].error_code", "NONE")),
    ),
)  # fmt: skip

SCRIPTS: Final = (*CREATE, *DELETE, *PARTITIONS)
