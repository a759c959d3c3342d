"""Requests that admin tools make in every cluster: elections, reassignments, the quorum, quotas, log directories."""

from collections.abc import Sequence
from typing import Any, Final

from tests.oracle.script import PRESENT, Script, Step
from tests.oracle.scripts.steps import new_topic

UNKNOWN: Final = "UNKNOWN_TOPIC_OR_PARTITION"


def _elect(*topics: tuple[str, list[int]], kind: int = 0, errors: tuple[str, ...] | None = None) -> Step:
    partitions = [{"topic": name, "partitions": indexes} for name, indexes in topics]
    return Step(
        "elect_leaders", {"election_type": kind, "topic_partitions": partitions, "timeout": 5000}, errors=errors
    )


ELECT_LEADERS: Final = (
    Script("elect leaders", "elect_leaders", *new_topic(partitions=3),
           _elect(("$t", [0]), errors=("ELECTION_NOT_NEEDED",)),
           _elect(("$t", [0, 7, -1]), ("$u", [0]), ("$t", [0, 1]), ("bad name", [0]), ("", [0])), _elect(("$t", [])),
           _elect()),
    Script("elect leaders of another kind", "elect_leaders", *new_topic(),
           _elect(("$t", [0]), kind=1, errors=("ELECTION_NOT_NEEDED",)),
           _elect(("$t", [0]), ("$u", [0]), kind=5, errors=("INVALID_REQUEST",)), versions=(1, 2)),
    Script(
        "elect leaders of all topics",
        "elect_leaders",
        *new_topic(partitions=2),
        *(Step("elect_leaders", {"election_type": kind, "topic_partitions": None, "timeout": 5000}) for kind in (0, 1)),
    ),
)  # fmt: skip


def _move(*topics: tuple[str, list[tuple[int, Any]]], errors: tuple[str, ...] | None = None, **more: Any) -> Step:
    asked = [
        {"name": name, "partitions": [{"partition_index": index, "replicas": replicas} for index, replicas in parts]}
        for name, parts in topics
    ]
    return Step("alter_partition_reassignments", {"topics": asked, "timeout": 5000, **more}, errors=errors)


REASSIGNMENTS: Final = (
    Script("alter partition reassignments", "alter_partition_reassignments", *new_topic(partitions=2),
           _move(("$t", [(0, ["$node"])]), errors=()),
           _move(("$t", [(0, None)]), errors=("NO_REASSIGNMENT_IN_PROGRESS",)),
           _move(("$t", [(0, [99])]), ("$u", [(0, ["$node"]), (0, None)]), ("$t", [(9, ["$node"]), (-1, None)])),
           _move(("$t", [(0, []), (1, ["$node", "$node"])]), errors=("INVALID_REPLICA_ASSIGNMENT",)),
           _move(("$t", [(0, ["$node", 99])]), allow_replication_factor_change=False),
           _move(("$t", [(1, ["$node"]), (1, ["$node"])])), _move(("$t", [])), _move()),
    Script(
        "list partition reassignments",
        "list_partition_reassignments",
        *new_topic(),
        *(
            Step("list_partition_reassignments", {"topics": topics, "timeout": 5000})
            for topics in (None, [], [{"name": "$t", "partition_indexes": [0, 9]}, {"name": "$u"}])
        ),
    ),
)  # fmt: skip


def _quorum(*topics: tuple[str, Sequence[int]], errors: tuple[str, ...] | None = None) -> Step:
    asked = [{"topic_name": name, "partitions": [{"partition_index": i} for i in indexes]} for name, indexes in topics]
    return Step("describe_quorum", {"topics": asked}, errors=errors)


QUORUM: Final = (
    Script("describe quorum", "describe_quorum", _quorum(("__cluster_metadata", [0]), errors=())),
    Script("describe quorum of what there is not", "describe_quorum", *new_topic(),
           _quorum(("__cluster_metadata", [1]), errors=(UNKNOWN,)), _quorum(("__cluster_metadata", [0, 0])),
           _quorum(("__cluster_metadata", [])), _quorum(("__cluster_metadata", [0]), ("$t", [0])), _quorum(("$t", [0])),
           _quorum()),
)  # fmt: skip


def _quotas(
    *components: tuple[str, int, str | None],
    strict: bool = False,
    errors: tuple[str, ...] = (),
    until: tuple[str, Any] | None = None,
) -> Step:
    """``until`` waits for a change: Kafka answers it before its brokers tell of it."""
    asked = [{"entity_type": kind, "match_type": how, "match": match} for kind, how, match in components]
    body = {"components": asked, "strict": strict}
    return Step("describe_client_quotas", body, errors=errors, until=until)


_INVALID: Final = ("INVALID_REQUEST",)


def _entry(*parts: tuple[str, str | None], **quotas: float | None) -> dict[str, Any]:
    """An entity by types and names, and its changes; None removes a quota."""
    return {
        "entity": [{"entity_type": kind, "entity_name": name} for kind, name in parts],
        "ops": [{"key": key, "value": value or 0.0, "remove": value is None} for key, value in quotas.items()],
    }


def _alter(*entries: dict[str, Any], validate_only: bool = False, errors: tuple[str, ...] = ()) -> Step:
    body = {"entries": list(entries), "validate_only": validate_only}
    return Step("alter_client_quotas", body, errors=errors)


ENTITIES: Final[tuple[tuple[tuple[str, str | None], ...], ...]] = (
    (("user", "$g"), ("client-id", "$h")),
    (("user", "$w"), ("client-id", "$h")),
    (("user", None), ("client-id", "$h")),
    (("user", "$g"), ("client-id", None)),
    (("user", "$g"),),
    (("user", "$w"),),
    (("user", None),),
    (("client-id", "$t"),),
)
FILTERS: Final = (
    (), (("user", 0, "$g"),), (("user", 0, "$u"),), (("user", 1, None),), (("user", 2, None),),
    (("client-id", 0, "$h"),), (("client-id", 2, None),), (("ip", 2, None),),
    (("user", 0, "$g"), ("client-id", 0, "$h")), (("user", 0, "$w"), ("client-id", 1, None)),
    (("user", 1, None), ("client-id", 0, "$h")), (("user", 2, None), ("client-id", 0, "$h")), (("user", 0, ""),),
)  # fmt: skip


def _rated(*, removed: bool = False) -> Step:
    rates = (None if removed else 10.5 + number for number in range(len(ENTITIES)))
    return _alter(*(_entry(*parts, request_percentage=rate) for parts, rate in zip(ENTITIES, rates, strict=True)))


QUOTAS: Final = (
    Script("describe client quotas by each filter", "describe_client_quotas", _rated(),
           _quotas(until=(f"entries[{len(ENTITIES) - 1}]", PRESENT)),
           *(_quotas(*components, strict=strict) for components in FILTERS for strict in (False, True)),
           _rated(removed=True), _quotas(until=("entries", []))),
    Script("describe client quotas", "describe_client_quotas", _quotas(), _quotas(("user", 0, "$g")),
           _quotas(("user", 2, None), ("client-id", 1, None), strict=True), _quotas(("ip", 0, "no address"))),
    Script(
        "describe client quotas by a filter that is none",
        "describe_client_quotas",
        _quotas(("moon", 2, None), errors=("UNSUPPORTED_VERSION",)),
        *(
            _quotas(*components, errors=("INVALID_REQUEST",))
            for components in (
                [("", 2, None)],
                [("user", 9, None)],
                [("user", 2, "$g")],
                [("user", 1, "$g")],
                [("user", 0, None)],
                [("user", 2, None), ("ip", 2, None)],
                [("user", 2, None), ("user", 1, None)],
            )
        ),
    ),
    Script("alter client quotas", "alter_client_quotas",
           _alter(_entry(("user", "$g"), ("client-id", "$h"), producer_byte_rate=1024.0, request_percentage=12.5)),
           _quotas(("user", 0, "$g"), until=("entries[0]", PRESENT)), _quotas(("user", 0, "$g"), strict=True),
           _quotas(("user", 0, "$g"), ("client-id", 2, None), strict=True),
           _alter(_entry(("user", "$g"), ("client-id", "$h"), producer_byte_rate=2048.0, request_percentage=None)),
           _alter(_entry(("user", "$g"), ("client-id", None), consumer_byte_rate=5.0), validate_only=True),
           _alter(_entry(("user", "$g"), ("client-id", None), consumer_byte_rate=5.0)),
           _quotas(("user", 0, "$g"), ("client-id", 1, None), strict=True, until=("entries[0]", PRESENT)),
           _quotas(("user", 0, "$g"), ("client-id", 2, None)),
           _alter(_entry(("user", "$g"), ("client-id", None), consumer_byte_rate=None)),
           _alter(_entry(("user", "$g"), ("client-id", "$h"), producer_byte_rate=None)),
           _quotas(("user", 0, "$g"), until=("entries", []))),
    Script("alter client quotas of addresses", "alter_client_quotas",
           _alter(_entry(("ip", "203.0.113.77"), connection_creation_rate=100.0)),
           _quotas(("ip", 0, "203.0.113.77"), strict=True, until=("entries[0]", PRESENT)),
           _alter(_entry(("ip", "203.0.113.77"), connection_creation_rate=None)),
           _quotas(("ip", 0, "203.0.113.77"), until=("entries", []))),
    Script(
        "alter client quotas that are none",
        "alter_client_quotas",
        *(
            _alter(*entries, errors=_INVALID)
            for entries in (
                [_entry(producer_byte_rate=1.0)],
                [_entry(("moon", "x"), producer_byte_rate=1.0)],
                [_entry(("user", ""), producer_byte_rate=1.0)],
                [_entry(("user", "$g"), ("ip", "203.0.113.77"), connection_creation_rate=1.0)],
                [_entry(("ip", "no address"), connection_creation_rate=1.0)],
                [_entry(("ip", "203.0.113.77"), producer_byte_rate=1.0)],
                [_entry(("user", "$g"), connection_creation_rate=1.0)],
                [_entry(("user", "$g"), bad=1.0)],
                [_entry(("user", "$g"), producer_byte_rate=0.0)],
                [_entry(("user", "$g"), producer_byte_rate=-1.0)],
                [_entry(("user", "$g"), producer_byte_rate=1.5)],
                [_entry(("user", "$g"), producer_byte_rate=1e20)],
                [_entry(("ip", "203.0.113.77"), connection_creation_rate=3e9)],
                [_entry(("user", "$w"), producer_byte_rate=1.0), _entry(("user", "$w"), producer_byte_rate=2.0)],
            )
        ),
        _alter(_entry(("user", "$g"), bad=None)),
        _alter(),
        _quotas(("user", 0, "$g")),
        _quotas(("user", 0, "$w")),
        _alter(_entry(("user", "$w"), producer_byte_rate=None)),
    ),
    Script(
        "describe user scram credentials",
        "describe_user_scram_credentials",
        *tuple(
            Step("describe_user_scram_credentials", {"users": users}, errors=None)
            for users in (None, [], [{"name": "$g"}, {"name": ""}], [{"name": "$g"}, {"name": "$h"}, {"name": "$g"}])
        ),
    ),
)  # fmt: skip


def _put(*dirs: tuple[str, list[tuple[str, list[int]]]], errors: tuple[str, ...] | None = None) -> Step:
    asked = [
        {"path": path, "topics": [{"name": name, "partitions": indexes} for name, indexes in topics]}
        for path, topics in dirs
    ]
    return Step("alter_replica_log_dirs", {"dirs": asked}, errors=errors)


LOG_DIRS: Final = (
    Script("alter replica log dirs", "alter_replica_log_dirs", *new_topic(partitions=3),
           Step("describe_log_dirs", {"topics": []}, save={"dir": "results[0].log_dir"}),
           _put(("$dir", [("$t", [0, 1])]), errors=()),
           _put(("$dir", [("$t", [0, 9, -1]), ("$u", [0]), ("bad name", [0])]), errors=(UNKNOWN,)),
           _put(("/nowhere", [("$t", [0, 9]), ("$u", [0])]), errors=("LOG_DIR_NOT_FOUND",)),
           _put(("/nowhere", [("$t", [0, 1])]), ("$dir", [("$t", [1])]), errors=("LOG_DIR_NOT_FOUND",)),
           _put(("$dir", [("$t", [0, 0]), ("$t", [1])]), ("$dir", [("$t", [2])]), errors=()),
           _put(("$dir", [("$t", [])]), ("", [])), _put()),
)  # fmt: skip

SCRIPTS: Final = (*ELECT_LEADERS, *REASSIGNMENTS, *QUORUM, *QUOTAS, *LOG_DIRS)
