"""Each API refuses what its client may not do, with Kafka's code, before anything reaches Redis."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import UUID

import pytest

from korvet.api import registry
from korvet.security.acl import Operation, PatternType, Permission, ResourceType
from korvet.store.contract import FUNCTIONS
from tests.api.acls import TURNED_ON, everything, on_cluster, rule, set_rules, whole_budget
from tests.api.data import connected, records
from tests.api.raw import ask, create_topics, created, unique
from tests.oracle.versions import API_KEYS, supported
from tests.support.broker import KorvetServer, running_broker
from tests.support.ported import kafka

TOPIC, GROUP, TRANSACTIONAL_ID = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.TRANSACTIONAL_ID
READ, WRITE, DESCRIBE = Operation.READ, Operation.WRITE, Operation.DESCRIBE
SECRET, NOBODYS = "secret", "nobodys"
NOT_CLIENTS = (b":frontends", b":@probe:")
"""Parts of keys that front-ends write of their own accord."""
NOT_CLIENTS_CALLS = ("korvet_log_forget_producers",)
T29, G30, C31, X53 = (
    f"{kind}_AUTHORIZATION_FAILED" for kind in ("TOPIC", "GROUP", "CLUSTER", "TRANSACTIONAL_ID")
)  # fmt: skip


@pytest.fixture(scope="module")
def broker() -> Iterator[KorvetServer]:
    with running_broker(broker=TURNED_ON) as running:
        yield running


@pytest.fixture(scope="module")
def secret_id(broker: KorvetServer) -> UUID:
    """The id of a topic that nobody may see; a group has committed an offset of it."""
    set_rules(broker, *everything())
    created(broker.port, SECRET)
    (topic,) = ask(broker.port, "metadata", 12, topics=[{"name": SECRET}])["topics"]
    return UUID(str(topic["topic_id"]))


def parts(**fields: Any) -> list[Any]:
    return [{"name": name, "partitions": [{"partition_index": 0, **fields}]} for name in (SECRET, NOBODYS)]


def indexes(field: str = "partitions", name: str = "name") -> list[Any]:
    return [{name: one, field: [0]} for one in (SECRET, NOBODYS)]


def produced(transactional_id: str | None = None) -> dict[str, Any]:
    batches = [{"index": 0, "records": records(1, 10)}]
    return {
        "transactional_id": transactional_id,
        "acks": -1,
        "timeout": 1000,
        "topic_data": [{"name": name, "partition_data": batches} for name in (SECRET, NOBODYS)],
    }


RESOURCES = [{"resource_type": kind, "resource_name": SECRET} for kind in (2, 32)] + [
    {"resource_type": 4, "resource_name": ""}
]
ACL = {
    "resource_type": 2, "resource_name": "t", "resource_pattern_type": 3, "principal": "User:a", "host": "*",
    "operation": 3, "permission_type": 3,
}  # fmt: skip
ANY = {"resource_type_filter": 1, "pattern_type_filter": 1, "operation": 1, "permission_type": 1}
REFUSALS: dict[str, tuple[dict[str, Any], set[str]]] = {
    "produce": (produced(), {T29}),
    "fetch": (
        {
            "replica_id": -1, "max_wait": 30_000, "min_bytes": 1, "max_bytes": 1000,
            "topics": [{"topic": name, "partitions": [{"partition": 0, "partition_max_bytes": 1000}]}
                       for name in (SECRET, NOBODYS)],
        },
        {"NONE", T29},
    ),
    "list_offsets": ({"replica_id": -1, "topics": parts(timestamp=-1)}, {T29}),
    "metadata": (
        {"topics": [{"name": SECRET}, {"name": NOBODYS}], "allow_auto_topic_creation": True}, {T29, "NONE"}
    ),
    "offset_commit": ({"group_id": "g", "topics": parts(committed_offset=1)}, {G30}),
    "offset_fetch": (
        {"group_id": "g", "topics": indexes("partition_indexes"),
         "groups": [{"group_id": "g", "topics": indexes("partition_indexes")}]},
        {G30},
    ),
    "find_coordinator": ({"key": "g", "key_type": 0, "coordinator_keys": ["g"]}, {G30}),
    "join_group": ({"group_id": "g", "session_timeout": 10_000, "protocol_type": "consumer"}, {G30}),
    "heartbeat": ({"group_id": "g", "member_id": "m"}, {G30}),
    "leave_group": ({"group_id": "g", "member_id": "m", "members": [{"member_id": "m"}]}, {G30}),
    "sync_group": ({"group_id": "g", "protocol_type": "consumer", "protocol_name": "range"}, {G30}),
    "describe_groups": ({"groups": ["g"]}, {G30}),
    "list_groups": ({}, {"NONE"}),
    "api_versions": ({"client_software_name": "c", "client_software_version": "1"}, {"NONE"}),
    "create_topics": ({"topics": [{"name": "new", "num_partitions": 1, "replication_factor": 1}]}, {T29}),
    "delete_topics": ({"topic_names": [SECRET, NOBODYS], "topics": [{"name": SECRET}, {"name": NOBODYS}]}, {T29}),
    "delete_records": ({"topics": parts(offset=-1)}, {T29}),
    "init_producer_id": ({"transactional_id": None, "producer_id": -1, "producer_epoch": -1}, {C31}),
    "offset_for_leader_epoch": (
        {"replica_id": -1,
         "topics": [{"topic": one, "partitions": [{"partition": 0}]} for one in (SECRET, NOBODYS)]},
        {T29},
    ),
    "add_partitions_to_txn": ({"v3_and_below_transactional_id": "x", "v3_and_below_topics": indexes()}, {X53, C31}),
    "add_offsets_to_txn": ({"transactional_id": "x", "group_id": "g"}, {X53}),
    "end_txn": ({"transactional_id": "x"}, {X53}),
    "write_txn_markers": (
        {"markers": [{"producer_id": 1, "topics": indexes("partition_indexes")}]}, {C31}
    ),
    "txn_offset_commit": ({"transactional_id": "x", "group_id": "g", "topics": parts(committed_offset=1)}, {X53}),
    "describe_configs": ({"resources": RESOURCES}, {T29, G30, C31}),
    "alter_configs": ({"resources": RESOURCES}, {T29, G30, C31}),
    "incremental_alter_configs": ({"resources": RESOURCES}, {T29, G30, C31}),
    "alter_replica_log_dirs": ({"dirs": [{"path": "/x", "topics": indexes()}]}, {C31}),
    "describe_log_dirs": ({"topics": None}, {C31}),
    "create_partitions": ({"topics": [{"name": SECRET, "count": 9}, {"name": NOBODYS, "count": 9}]}, {T29}),
    "delete_groups": ({"groups_names": ["g"]}, {G30}),
    "elect_leaders": ({"topic_partitions": indexes(name="topic")}, {C31}),
    "alter_partition_reassignments": ({"topics": parts(replicas=[1])}, {C31}),
    "list_partition_reassignments": ({}, {C31}),
    "offset_delete": ({"group_id": "g", "topics": parts()}, {G30}),
    "describe_client_quotas": ({}, {C31}),
    "alter_client_quotas": (
        {"entries": [{"entity": [{"entity_type": "user", "entity_name": "alice"}],
                      "ops": [{"key": "producer_byte_rate", "value": 1.0, "remove": False}]}]}, {C31}
    ),
    "describe_user_scram_credentials": ({}, {C31}),
    "alter_user_scram_credentials": ({"deletions": [{"name": "alice", "mechanism": 1}]}, {C31}),
    "sasl_handshake": ({"mechanism": "PLAIN"}, {"ILLEGAL_SASL_STATE"}),
    "sasl_authenticate": ({"auth_bytes": b""}, {"ILLEGAL_SASL_STATE"}),
    "describe_quorum": (
        {"topics": [{"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}]}, {C31}
    ),
    "describe_cluster": ({}, {"NONE"}),
    "describe_producers": ({"topics": indexes("partition_indexes")}, {T29}),
    "describe_transactions": ({"transactional_ids": ["x"]}, {X53}),
    "list_transactions": ({}, {"NONE"}),
    "consumer_group_heartbeat": (
        {"group_id": "g", "member_id": "m", "rebalance_timeout": 1000, "topic_partitions": [],
         "subscribed_topic_names": [SECRET]},
        {G30},
    ),
    "consumer_group_describe": ({"group_ids": ["g"]}, {G30}),
    "list_config_resources": ({}, {C31}),
    # Without an id the answer holds a random one.
    "get_telemetry_subscriptions": ({"client_instance_id": UUID(int=7)}, {"NONE"}),
    "push_telemetry": ({}, {"INVALID_REQUEST"}),
    "describe_acls": (ANY, {C31}),
    "create_acls": ({"creations": [ACL]}, {C31}),
    "delete_acls": ({"filters": [ANY]}, {C31}),
    "describe_topic_partitions": ({"topics": [{"name": SECRET}, {"name": NOBODYS}]}, {T29}),
}  # fmt: skip
BY_ID = {("produce", 13), *(("fetch", version) for version in range(13, 19))}


def codes(answer: Any) -> set[str]:
    """All error codes of an answer, at any depth."""
    if isinstance(answer, dict):
        own = {str(value) for name, value in answer.items() if name in ("error_code", "partition_error_code")}
        return own.union(*map(codes, answer.values()))
    if isinstance(answer, list | tuple):
        return set().union(*map(codes, answer))
    return set()


def state(broker: KorvetServer) -> dict[bytes, bytes | None]:
    """All keys that clients' requests may change, with their contents."""
    with broker.redis() as client:
        return {key: client.dump(key) for key in client.scan_iter() if not any(word in key for word in NOT_CLIENTS)}


def values_of(api: str, version: int, secret_id: UUID) -> dict[str, Any]:
    """The request, with topics by id if the version names them so."""
    values = REFUSALS[api][0]
    if (api, version) not in BY_ID:
        return values
    field = "topic_data" if api == "produce" else "topics"
    return {**values, field: [{**values[field][0], "topic_id": secret_id}]}


def refused_with(api: str, version: int) -> set[str]:
    if api == "add_partitions_to_txn":
        return {X53} if version < 4 else {C31}
    if api == "describe_log_dirs" and version < 3:
        return set()
    if api in ("alter_configs", "incremental_alter_configs", "describe_configs"):
        return {T29, G30, C31}
    return REFUSALS[api][1]


def test_every_api_has_a_check_and_a_case_here() -> None:
    assert {api.key for api in registry().values()} == {API_KEYS[name] for name in REFUSALS}
    assert all(callable(api.needs) for api in registry().values())


@pytest.mark.parametrize("api", REFUSALS)
@kafka(
    "AuthorizerIntegrationTest.testAuthorizationWithTopicExisting",
    "AuthorizerIntegrationTest.testAuthorizationWithTopicNotExisting",
)
def test_without_a_right_each_version_is_refused_and_nothing_is_written(
    broker: KorvetServer, secret_id: UUID, api: str
) -> None:
    set_rules(broker)
    before = state(broker)
    for version in supported(api):
        answer = ask(broker.port, api, version, **values_of(api, version, secret_id))
        expected = refused_with(api, version) - {"NONE"}
        assert codes(answer) - {"NONE"} == expected, (version, answer)
    after = state(broker)
    assert [key for key in before.keys() | after.keys() if before.get(key) != after.get(key)] == []


@contextmanager
def writes(broker: KorvetServer) -> Iterator[list[str]]:
    """The commands and functions that write and reached Redis during the block, apart from the front-end's own."""
    found: list[str] = []
    with broker.redis() as client, broker.redis() as other:
        writing = {name for name, about in client.command().items() if "write" in about["flags"]}
        with client.monitor() as monitor:
            yield found
            other.echo("the end")
            for seen in monitor.listen():
                words = seen["command"].split()
                if words[:1] == ["ECHO"]:
                    return
                # What a function does shows as a command of its own.
                if seen["client_type"] == "lua" or not words:
                    continue
                name = words[1] if words[0].upper() == "FCALL" else words[0].lower()
                is_own = name in NOT_CLIENTS_CALLS or any(word.decode() in seen["command"] for word in NOT_CLIENTS)
                if (name in FUNCTIONS or name in writing) and not is_own:
                    found.append(seen["command"][:200])


def test_refused_requests_of_all_apis_send_nothing_that_writes(broker: KorvetServer, secret_id: UUID) -> None:
    set_rules(broker)
    with writes(broker) as sent:
        for api in REFUSALS:
            for version in supported(api):
                ask(broker.port, api, version, **values_of(api, version, secret_id))
    assert sent == []
    set_rules(broker, rule(TOPIC, SECRET, WRITE))
    with writes(broker) as sent:
        assert put(broker, SECRET) == "NONE"
    assert len(sent) == 1 and "korvet_log_append" in sent[0]


def topic_code(answer: Any) -> str:
    return str(answer["topics"][0]["error_code"])


def put(broker: KorvetServer, topic: str, transactional_id: str | None = None) -> str:
    """The code of a produced batch."""
    data = [{"name": topic, "partition_data": [{"index": 0, "records": records(1, 10)}]}]
    values = {"transactional_id": transactional_id, "acks": -1, "timeout": 1000, "topic_data": data}
    (topic_answer,) = ask(broker.port, "produce", 9, **values)["responses"]
    return str(topic_answer["partition_responses"][0]["error_code"])


@pytest.mark.parametrize("topics", [[SECRET, "open"], ["open", SECRET]])
def test_a_request_for_several_topics_serves_those_that_are_allowed(
    broker: KorvetServer, secret_id: UUID, topics: list[str]
) -> None:
    set_rules(broker, rule(TOPIC, "open", Operation.ALL))
    if ask(broker.port, "metadata", 12, topics=[{"name": "open"}])["topics"][0]["error_code"] != "NONE":
        created(broker.port, "open")
    data = [{"name": name, "partition_data": [{"index": 0, "records": records(1, 10)}]} for name in topics]
    answer = ask(broker.port, "produce", 9, acks=-1, timeout=1000, topic_data=data, transactional_id=None)
    produced = {one["name"]: one["partition_responses"][0]["error_code"] for one in answer["responses"]}
    assert produced == {SECRET: T29, "open": "NONE"}
    asked = [
        {"topic": name, "partitions": [{"partition": 0, "partition_max_bytes": 1000, "fetch_offset": 0}]}
        for name in topics
    ]
    answer = ask(
        broker.port, "fetch", 12, replica_id=-1, max_wait=100, min_bytes=1, max_bytes=9999, session_epoch=-1,
        topics=asked,
    )  # fmt: skip
    read = {one["topic"]: one["partitions"][0] for one in answer["responses"]}
    assert {name: one["error_code"] for name, one in read.items()} == {SECRET: T29, "open": "NONE"}
    assert not read[SECRET]["records"] and read["open"]["records"]


@kafka("AuthorizerIntegrationTest.testListGroupApiWithAndWithoutListGroupAcls")
def test_lists_leave_out_what_the_client_may_not_see(broker: KorvetServer, secret_id: UUID) -> None:
    set_rules(broker, *everything())
    for group in ("mine", "theirs"):
        ask(
            broker.port, "offset_commit", 8, group_id=group, generation_id_or_member_epoch=-1, member_id="",
            topics=[{"name": SECRET, "partitions": [{"partition_index": 0, "committed_offset": 0}]}],
        )  # fmt: skip
    set_rules(broker, rule(GROUP, "mi", DESCRIBE, pattern=PatternType.PREFIXED))
    listed = {group["group_id"] for group in ask(broker.port, "list_groups", 5)["groups"]}
    assert listed == {"mine"}
    assert ask(broker.port, "metadata", 12, topics=None)["topics"] == []
    (mine,) = ask(broker.port, "offset_fetch", 8, groups=[{"group_id": "mine", "topics": None}])["groups"]
    assert (mine["error_code"], mine["topics"]) == ("NONE", [])
    set_rules(broker, on_cluster(DESCRIBE))
    assert {"mine", "theirs"} <= {group["group_id"] for group in ask(broker.port, "list_groups", 5)["groups"]}


@kafka(
    "AuthorizerIntegrationTest.testMetadataClusterAuthorizedOperationsWithoutDescribeCluster",
    "AuthorizerIntegrationTest.testMetadataClusterAuthorizedOperationsWithDescribeAndAlterCluster",
    "DescribeAuthorizedOperationsTest.testDescribeCluster",
    "DescribeAuthorizedOperationsTest.testDescribeTopics",
)
def test_authorized_operations_are_those_that_the_rules_allow(broker: KorvetServer, secret_id: UUID) -> None:
    def operations(api: str, version: int, field: str, **values: Any) -> int:
        answer = ask(broker.port, api, version, include_cluster_authorized_operations=True, **values)
        return int(answer[field])

    cluster = "cluster_authorized_operations"
    set_rules(broker, on_cluster(Operation.ALTER_CONFIGS), rule(TOPIC, SECRET, READ))
    assert operations("describe_cluster", 0, cluster) == 0
    (topic,) = ask(broker.port, "metadata", 12, topics=[{"name": SECRET}], include_topic_authorized_operations=True)[
        "topics"
    ]
    assert topic["topic_authorized_operations"] == 1 << READ | 1 << DESCRIBE
    set_rules(broker, on_cluster(Operation.ALTER))
    assert operations("describe_cluster", 0, cluster) == 1 << Operation.ALTER | 1 << DESCRIBE
    assert operations("metadata", 10, cluster, topics=[]) == 1 << Operation.ALTER | 1 << DESCRIBE


@kafka(
    "AuthorizerIntegrationTest.testTransactionalProducerInitTransactionsNoWriteTransactionalIdAcl",
    "AuthorizerIntegrationTest.testIdempotentProducerNoIdempotentWriteAclInInitProducerId",
)
def test_a_producer_id_needs_some_topic_to_write_to_or_the_transactional_id(
    broker: KorvetServer, secret_id: UUID
) -> None:
    def code(transactional_id: str | None = None) -> str:
        answer = ask(
            broker.port, "init_producer_id", 4, transactional_id=transactional_id, transaction_timeout=1000,
            producer_id=-1, producer_epoch=-1,
        )  # fmt: skip
        return str(answer["error_code"])

    set_rules(broker, rule(TOPIC, "whatever", WRITE))
    assert (code(), code("x")) == ("NONE", X53)
    set_rules(broker, rule(TOPIC, "what", WRITE, Permission.DENY, PatternType.PREFIXED), rule(TOPIC, "whatever", WRITE))
    assert code() == C31
    set_rules(broker, on_cluster(Operation.IDEMPOTENT_WRITE), rule(TRANSACTIONAL_ID, "x", WRITE))
    assert (code(), code("x")) == ("NONE", "NONE")


def test_a_taken_right_ends_a_fetch_that_waits_without_records(broker: KorvetServer, secret_id: UUID) -> None:
    topic = unique("waited")
    allowed = rule(TOPIC, topic, Operation.ALL)
    set_rules(broker, allowed)
    created(broker.port, topic)
    with connected(broker.port) as connection:
        connection.send(
            "fetch", 12, replica_id=-1, max_wait=20_000, min_bytes=1, max_bytes=9999, session_epoch=-1,
            topics=[{"topic": topic, "partitions": [{"partition": 0, "partition_max_bytes": 1000}]}],
        )  # fmt: skip
        # The front-end serves the Fetch before it can read the next rules.
        set_rules(broker, rule(TOPIC, topic, WRITE))
        assert put(broker, topic) == "NONE"
        (answered,) = connection.receive()["responses"][0]["partitions"]
    assert (answered["error_code"], answered["records"]) == (T29, b"")


@kafka("AuthorizerIntegrationTest.testCreateTopicAuthorizationWithClusterCreate")
def test_a_created_topic_is_shown_without_its_configs_to_a_client_that_may_not_see_them(
    broker: KorvetServer, secret_id: UUID
) -> None:
    name = unique("blind")
    set_rules(broker, on_cluster(Operation.CREATE))
    (result,) = create_topics(broker.port, {"name": name})
    assert result["error_code"] == "NONE"
    assert (result["num_partitions"], result["replication_factor"], result["configs"]) == (-1, -1, [])
    assert result["topic_config_error_code"] == 29


def test_add_partitions_attempts_none_if_one_topic_is_forbidden(broker: KorvetServer, secret_id: UUID) -> None:
    set_rules(broker, rule(TRANSACTIONAL_ID, "x", WRITE), rule(TOPIC, "open", WRITE))
    asked = [{"name": name, "partitions": [0]} for name in ("open", SECRET)]
    answer = ask(broker.port, "add_partitions_to_txn", 3, v3_and_below_transactional_id="x", v3_and_below_topics=asked)
    codes_by_topic = {
        topic["name"]: topic["results_by_partition"][0]["partition_error_code"]
        for topic in answer["results_by_topic_v3_and_below"]
    }
    assert codes_by_topic == {"open": "OPERATION_NOT_ATTEMPTED", SECRET: T29}


def test_the_archives_group_takes_offsets_only_from_clients_that_may_delete_it(
    broker: KorvetServer, secret_id: UUID
) -> None:
    """READ of all groups is a common rule, and these offsets have records removed."""
    offset = parts(committed_offset=1, committed_leader_epoch=0, committed_metadata="")
    # Not of all groups: then one could not tell when the front-end has read the rules.
    groups = rule(GROUP, "korvet.", READ, pattern=PatternType.PREFIXED)
    reads = [groups, rule(TOPIC, "*", READ), rule(TRANSACTIONAL_ID, "*", WRITE)]

    def commit(group: str) -> set[str]:
        commit = {"group_id": group, "topics": offset[:1]}
        plain = ask(broker.port, "offset_commit", 8, generation_id_or_member_epoch=-1, member_id="", **commit)
        producer = {"transactional_id": "t", "producer_id": 1, "producer_epoch": 0}
        held = ask(broker.port, "txn_offset_commit", 3, generation_id=-1, member_id="", **producer, **commit)
        return {plain["topics"][0]["partitions"][0]["error_code"]} | (
            {held["topics"][0]["partitions"][0]["error_code"]} & {G30}
        )

    set_rules(broker, *reads)
    assert commit("korvet.archive") == {G30} and commit("korvet.archive2") == {"NONE"}
    set_rules(broker, *reads, rule(GROUP, "korvet.archive", Operation.DELETE))
    assert commit("korvet.archive") == {"NONE"}


def test_a_deleted_topic_and_a_forbidden_one_look_alike(broker: KorvetServer, secret_id: UUID) -> None:
    set_rules(broker)
    topics = [{"name": SECRET}, {"name": NOBODYS}]
    for api, version in (("metadata", 12), ("describe_topic_partitions", 0)):
        seen = ask(broker.port, api, version, topics=topics)["topics"]
        first, second = ({**one, "name": ""} for one in seen)
        assert first == second
    deleted = ask(broker.port, "delete_topics", 6, topics=[{"topic_id": secret_id}, *topics])["responses"]
    assert {(one["name"], one["error_code"]) for one in deleted} == {(None, T29), (SECRET, T29), (NOBODYS, T29)}


def test_a_refused_request_is_no_change_in_the_audit_log(broker: KorvetServer, secret_id: UUID) -> None:
    allowed = unique("mine")
    set_rules(broker, rule(TOPIC, allowed, Operation.ALL))
    topics = [{"name": name, "num_partitions": 1, "replication_factor": 1} for name in (SECRET, allowed)]
    whole_budget()
    before = len(broker.log)
    for _ in range(2):
        ask(broker.port, "create_topics", 7, topics=topics, timeout=1000)
    ask(broker.port, "create_topics", 7, topics=topics, timeout=1000, validate_only=True)
    ask(broker.port, "delete_topics", 6, topics=[{"name": SECRET}, {"name": NOBODYS}], timeout=1000)
    ask(broker.port, "delete_topics", 6, topics=[{"name": SECRET}, {"name": allowed}], timeout=1000)
    ask(broker.port, "create_acls", 3, creations=[ACL])
    lines = [line for line in broker.log[before:].splitlines() if "audit=True" in line]
    changed = [line for line in lines if " changed " in line]
    assert [("create_topics" in line, "delete_topics" in line) for line in changed] == [(True, False)] * 2 + [
        (False, True)
    ]
    assert all("count=1" in line and allowed in line and SECRET not in line for line in changed)
    assert ["outcome=done" in line for line in changed] == [True, False, True]
    assert "errors=['TOPIC_ALREADY_EXISTS']" in changed[1]
    assert sum(" denied " in line for line in lines) == 3 + 2 + 1 + 1


@kafka("AuthorizerTest.testSuperUserHasAccess")
def test_super_users_may_do_everything_without_a_rule() -> None:
    with running_broker(broker={**TURNED_ON, "super.users": "User:admin;User:ANONYMOUS"}) as running:
        assert put(running, created(running.port)) == "NONE"


def test_resources_without_rules_are_open_if_the_setting_says_so() -> None:
    with running_broker(broker={**TURNED_ON, "allow.everyone.if.no.acl.found": "true"}) as running:
        topic = created(running.port)
        assert put(running, topic) == "NONE"
        set_rules(running, rule(TOPIC, topic, READ, principal="User:bob"), rule(GROUP, "*", DESCRIBE))
        assert put(running, topic) == T29
