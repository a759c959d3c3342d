"""Each API refuses what its client may not do, with Kafka's code, before anything reaches Redis."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import UUID, uuid4

import pytest
from kio.schema.index import api_key_map

from korvet.api import registry
from korvet.security.acl import Operation, PatternType, ResourceType
from korvet.store.contract import FUNCTIONS
from tests.api.acls import TURNED_ON, everything, on_cluster, rule, set_rules, whole_budget
from tests.api.data import connected, records
from tests.api.raw import ask, created, unique
from tests.api.transactions import producer
from tests.oracle.versions import supported
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
    "share_group_heartbeat": (
        {"group_id": "g", "member_id": "m", "member_epoch": 0, "subscribed_topic_names": [SECRET]}, {G30}
    ),
    "share_group_describe": ({"group_ids": ["g"]}, {G30}),
    "share_fetch": ({"group_id": "g", "member_id": "m", "share_session_epoch": 0}, {G30}),
    "share_acknowledge": ({"group_id": "g", "member_id": "m", "share_session_epoch": 1}, {G30}),
    "describe_share_group_offsets": ({"groups": [{"group_id": "g", "topics": None}]}, {G30}),
    "alter_share_group_offsets": (
        {"group_id": "g", "topics": [{"topic_name": SECRET, "partitions": [{"partition_index": 0}]}]}, {G30}
    ),
    "delete_share_group_offsets": ({"group_id": "g", "topics": [{"topic_name": SECRET}]}, {G30}),
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
    assert {api_key_map[key] for key in registry()} == REFUSALS.keys()
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


def put(broker: KorvetServer, topic: str, transactional_id: str | None = None) -> str:
    """The code of a produced batch."""
    data = [{"name": topic, "partition_data": [{"index": 0, "records": records(1, 10)}]}]
    values = {"transactional_id": transactional_id, "acks": -1, "timeout": 1000, "topic_data": data}
    (topic_answer,) = ask(broker.port, "produce", 9, **values)["responses"]
    return str(topic_answer["partition_responses"][0]["error_code"])


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


def test_the_archives_group_takes_offsets_only_of_topics_that_the_client_may_alter(
    broker: KorvetServer, secret_id: UUID
) -> None:
    """READ of all groups and topics is a common rule, and these offsets have records removed."""
    wanted = {"partition_index": 0, "committed_offset": 1, "committed_leader_epoch": 0, "committed_metadata": ""}
    topics = [{"name": name, "partitions": [wanted]} for name in (SECRET, "own")]
    # Not of all groups: then one could not tell when the front-end has read the rules.
    groups = rule(GROUP, "korvet.", READ, pattern=PatternType.PREFIXED)
    transactions, alters = rule(TRANSACTIONAL_ID, "*", WRITE), rule(TOPIC, "own", Operation.ALTER)
    set_rules(broker, *everything())
    created(broker.port, "own")
    txn = producer(broker.port)

    def commit(group: str) -> list[list[str]]:
        fields = {"group_id": group, "topics": topics, "member_id": "", "generation_id_or_member_epoch": -1}
        plain = ask(broker.port, "offset_commit", 8, **fields)
        held = txn.commit_offsets(group, {(SECRET, 0): 1, ("own", 0): 1})
        return [[topic["partitions"][0]["error_code"] for topic in plain["topics"]], held]

    set_rules(broker, groups, transactions, rule(TOPIC, "*", READ), alters)
    assert commit("korvet.archive") == [[T29, "NONE"]] * 2
    assert commit("korvet.archive2") == [["NONE", "NONE"]] * 2
    # ALTER is not READ.
    set_rules(broker, groups, transactions, alters)
    assert commit("korvet.archive") == [[T29, T29]] * 2


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


@kafka(
    "AuthorizerIntegrationTest.testCreatePermissionMetadataRequestAutoCreate",
    "AuthorizerIntegrationTest.testCreatePermissionOnTopicToReadFromNonExistentTopic",
    "AuthorizerIntegrationTest.testCreatePermissionOnTopicToWriteToNonExistentTopic",
    "AuthorizerIntegrationTest.testCreatePermissionOnClusterToReadFromNonExistentTopic",
    "AuthorizerIntegrationTest.testCreatePermissionOnClusterToWriteToNonExistentTopic",
)
@pytest.mark.parametrize("is_of_cluster", [False, True])
def test_metadata_creates_a_topic_only_for_a_client_that_may_create_it(
    broker: KorvetServer, is_of_cluster: bool
) -> None:
    name = unique()
    right = on_cluster(Operation.CREATE) if is_of_cluster else rule(TOPIC, name, Operation.CREATE)
    for rules, expected in (([], T29), ([right], "NONE")):
        set_rules(broker, rule(TOPIC, name, READ), *rules)
        assert codes(ask(broker.port, "metadata", 12, topics=[{"name": name}])) == {expected}


@kafka(
    "AuthorizerIntegrationTest.testConsumerGroupHeartbeatWithGroupReadAndTopicDescribeAcl",
    "AuthorizerIntegrationTest.testConsumerGroupDescribeWithGroupDescribeAndTopicDescribeAcl",
    "AuthorizerIntegrationTest.testConsumerGroupDescribeWithoutTopicDescribeAcl",
)
def test_a_group_is_described_only_to_a_client_that_may_describe_its_topics(
    broker: KorvetServer, secret_id: UUID
) -> None:
    group = unique("g")
    set_rules(broker, rule(GROUP, group, READ), rule(TOPIC, SECRET, DESCRIBE))
    for _ in range(2):
        member = {"group_id": group, "member_id": "m", "member_epoch": 0, "rebalance_timeout": 1000}
        asked = {**member, "topic_partitions": [], "subscribed_topic_names": [SECRET]}
        assert codes(ask(broker.port, "consumer_group_heartbeat", 1, **asked)) == {"NONE"}
    assert codes(ask(broker.port, "consumer_group_describe", 1, group_ids=[group])) == {"NONE"}
    set_rules(broker, rule(GROUP, group, DESCRIBE))
    assert codes(ask(broker.port, "consumer_group_describe", 1, group_ids=[group])) == {T29}


@kafka("KafkaApisTest.testShareGroupHeartbeatRequestTopicAuthorizationFailed")
@kafka("KafkaApisTest.testShareGroupDescribeFilterUnauthorizedTopics testAlterShareGroupOffsetsAuthorizationFailed")
@kafka("KafkaApisTest.testDescribeShareGroupOffsetsRequestTopicAuthorizationFailed")
@kafka("KafkaApisTest.testDescribeShareGroupAllOffsetsRequestTopicAuthorizationFailed")
@kafka("KafkaApisTest.testDeleteShareGroupOffsetsRequestsTopicAuthorizationFailed")
def test_a_share_group_shows_and_changes_only_topics_that_the_client_may_use(
    broker: KorvetServer, secret_id: UUID
) -> None:
    group, port = unique("g"), broker.port
    own = [rule(GROUP, group, READ), rule(GROUP, group, Operation.DELETE)]
    heartbeat = {"group_id": group, "member_id": "m", "subscribed_topic_names": [SECRET]}
    altered = {"topic_name": SECRET, "partitions": [{"partition_index": 0, "start_offset": 0}]}
    named = {"topics": [{"topic_name": SECRET, "partitions": [0]}]}

    def asked() -> list[set[str]]:
        return [
            codes(ask(port, "share_group_heartbeat", 1, member_epoch=0, **heartbeat)),
            codes(ask(port, "share_group_describe", 1, group_ids=[group])),
            codes(ask(port, "describe_share_group_offsets", 1, groups=[{"group_id": group, **named}])),
            codes(
                ask(port, "share_group_heartbeat", 1, member_epoch=-1, **{**heartbeat, "subscribed_topic_names": None})
            ),
            codes(ask(port, "alter_share_group_offsets", 0, group_id=group, topics=[altered])),
            codes(ask(port, "delete_share_group_offsets", 0, group_id=group, topics=[{"topic_name": SECRET}])),
        ]

    set_rules(broker, *own, rule(TOPIC, SECRET, READ))
    assert asked() == [{"NONE"}] * 6
    assert ask(port, "share_group_heartbeat", 1, member_epoch=0, **heartbeat)["error_code"] == "NONE"
    set_rules(broker, *own)
    (every,) = ask(port, "describe_share_group_offsets", 1, groups=[{"group_id": group, "topics": None}])["groups"]
    assert (every["error_code"], every["topics"]) == ("NONE", [])
    assert asked() == [{T29}, {T29}, {"NONE", T29}, {"NONE"}, {"NONE", T29}, {"NONE", T29}]


@kafka(
    "AuthorizerIntegrationTest.testListTransactionsAuthorization",
    "AuthorizerIntegrationTest.shouldNotIncludeUnauthorizedTopicsInDescribeTransactionsResponse",
)
def test_a_transaction_is_shown_with_the_topics_that_the_client_may_describe(
    broker: KorvetServer, secret_id: UUID
) -> None:
    name = unique("txn")
    own, topic = rule(TRANSACTIONAL_ID, name, WRITE), rule(TOPIC, SECRET, WRITE)
    set_rules(broker, own, topic)
    mine = producer(broker.port, 1, name)
    assert mine.add(SECRET) == ["NONE"]

    def seen() -> tuple[list[str], set[str], list[str]]:
        listed = ask(broker.port, "list_transactions", 0)["transaction_states"]
        (state,) = ask(broker.port, "describe_transactions", 0, transactional_ids=[name])["transaction_states"]
        return [one["transactional_id"] for one in listed], codes(state), [one["topic"] for one in state["topics"]]

    assert seen() == ([name], {"NONE"}, [SECRET])
    set_rules(broker, own)
    assert seen() == ([name], {"NONE"}, [])
    set_rules(broker, topic)
    assert seen() == ([], {X53}, [])
    set_rules(broker, own)
    assert mine.end(commit=False, version=3) == "NONE"


@kafka("AuthorizerIntegrationTest.testTopicIdAuthorization")
@pytest.mark.parametrize("operations", [[], [DESCRIBE]])
def test_an_id_shows_its_topic_only_to_a_client_that_may_describe_it(
    broker: KorvetServer, secret_id: UUID, operations: list[Operation]
) -> None:
    set_rules(broker, *(rule(TOPIC, SECRET, operation) for operation in operations))
    for asked, expected in ((secret_id, T29), (uuid4(), "UNKNOWN_TOPIC_ID")):
        (deleted,) = ask(broker.port, "delete_topics", 6, topics=[{"topic_id": asked}], timeout=1000)["responses"]
        shown = SECRET if asked == secret_id and operations else None
        assert (deleted["error_code"], deleted["name"]) == (expected, shown)


@kafka("AuthorizerIntegrationTest.testIncrementalAlterConfigsRequestRequiresClusterPermissionForBrokerLogger")
def test_configs_of_a_logger_need_another_right_than_those_of_a_broker(broker: KorvetServer) -> None:
    set_rules(broker, on_cluster(Operation.ALTER_CONFIGS))
    for kind, expected in ((4, {"NONE"}), (8, {C31})):
        resources = [{"resource_type": kind, "resource_name": "1", "configs": []}]
        asked = {"resources": resources, "validate_only": True}
        assert codes(ask(broker.port, "incremental_alter_configs", 1, **asked)) == expected


@kafka(
    "AuthorizerIntegrationTest."
    "testEmptyTopicNameForFetchVersionFromOldestTo12 testZeroTopicIdForFetchVersionFrom13ToNewest"
)
def test_fetch_of_a_topic_without_a_name_or_an_id_has_the_code_of_its_version(broker: KorvetServer) -> None:
    set_rules(broker)
    for version in supported("fetch"):
        topics = [{"topic": "", "topic_id": None, "partitions": [{"partition": 0, "partition_max_bytes": 1000}]}]
        answer = ask(broker.port, "fetch", version, replica_id=-1, max_wait=0, session_epoch=-1, topics=topics)
        assert codes(answer) - {"NONE"} == {T29 if version < 13 else "UNKNOWN_TOPIC_ID"}
