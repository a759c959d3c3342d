"""Kafka's cases of single requests: the rules of a client, its request, and the codes in the answer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from korvet.security.acl import CLUSTER_NAME, Acl, Operation, ResourceType
from tests.api.acls import TURNED_ON, everything, rule, set_rules
from tests.api.data import records
from tests.api.raw import ask, created, unique
from tests.api.test_authorization import codes
from tests.support.broker import KorvetServer, running_broker
from tests.support.ported import kafka

READ, WRITE, CREATE, DELETE = Operation.READ, Operation.WRITE, Operation.CREATE, Operation.DELETE
DESCRIBE, ALTER, ALL = Operation.DESCRIBE, Operation.ALTER, Operation.ALL
NAME, MISSING = "cases", "cases-missing"
T29, G30, C31, X53 = (f"{kind}_AUTHORIZATION_FAILED" for kind in ("TOPIC", "GROUP", "CLUSTER", "TRANSACTIONAL_ID"))
UNKNOWN = "UNKNOWN_TOPIC_OR_PARTITION"


@pytest.fixture(scope="module")
def broker() -> Iterator[KorvetServer]:
    """A broker with the topic and the group of the cases."""
    with running_broker(broker={**TURNED_ON, "auto.create.topics.enable": "false"}) as running:
        set_rules(running, *everything())
        created(running.port, NAME)
        assert COMMIT.codes(running) == {"NONE"}
        yield running


def topic(operation: Operation, name: str = NAME) -> Acl:
    return rule(ResourceType.TOPIC, name, operation)


def group(operation: Operation, name: str = NAME) -> Acl:
    return rule(ResourceType.GROUP, name, operation)


def transaction(operation: Operation) -> Acl:
    return rule(ResourceType.TRANSACTIONAL_ID, NAME, operation)


def cluster(operation: Operation) -> Acl:
    return rule(ResourceType.CLUSTER, CLUSTER_NAME, operation)


class Request:
    """A request, and the codes in its answer."""

    def __init__(self, api: str, version: int, **values: Any) -> None:
        self._api, self._version, self.values = api, version, values

    def answer(self, broker: KorvetServer) -> Any:
        return ask(broker.port, self._api, self._version, **self.values)

    def codes(self, broker: KorvetServer) -> set[str]:
        found = codes(self.answer(broker))
        return found - {"NONE"} or {"NONE"}


def parts(name: str = NAME, **fields: Any) -> list[Any]:
    return [{"name": name, "partitions": [{"partition_index": 0, **fields}]}]


def produced(transactional_id: str | None = None, name: str = NAME, attributes: int = 0) -> Request:
    batch = records(1, 10, attributes=attributes) if attributes else records(1, 10)
    data = [{"name": name, "partition_data": [{"index": 0, "records": batch}]}]
    return Request("produce", 9, transactional_id=transactional_id, acks=-1, timeout=5000, topic_data=data)


def fetched(replica_id: int = -1, name: str = NAME) -> Request:
    asked = [{"topic": name, "partitions": [{"partition": 0, "partition_max_bytes": 10_000, "fetch_offset": 0}]}]
    return Request(
        "fetch", 12, replica_id=replica_id, max_wait=0, min_bytes=0, max_bytes=10_000, session_epoch=-1, topics=asked
    )


def metadata(name: str = NAME) -> Request:
    return Request("metadata", 12, topics=[{"name": name}])


def offsets_fetched(all_topics: bool = False) -> Request:
    topics = None if all_topics else [{"name": NAME, "partition_indexes": [0]}]
    return Request("offset_fetch", 8, groups=[{"group_id": NAME, "topics": topics}])


def deleted_topic(name: str = NAME) -> Request:
    return Request("delete_topics", 6, topics=[{"name": name}], timeout=5000)


def initialized(transactional_id: str | None = NAME) -> Request:
    asked = {"transaction_timeout": 1000, "producer_id": -1, "producer_epoch": -1}
    return Request("init_producer_id", 4, transactional_id=transactional_id, **asked)


def configured(resource_type: int, name: str = NAME) -> Request:
    resources = [{"resource_type": resource_type, "resource_name": name, "configs": []}]
    return Request("incremental_alter_configs", 1, resources=resources, validate_only=True)


COMMIT = Request(
    "offset_commit", 8, group_id=NAME, generation_id_or_member_epoch=-1, member_id="",
    topics=parts(committed_offset=5, committed_leader_epoch=-1),
)  # fmt: skip
LIST_OFFSETS = Request("list_offsets", 8, replica_id=-1, topics=parts(timestamp=-1, current_leader_epoch=-1))
DESCRIBE_GROUP = Request("describe_groups", 5, groups=[NAME])
DELETE_GROUP = Request("delete_groups", 2, groups_names=[MISSING])
DELETE_OFFSETS = Request("offset_delete", 0, group_id=NAME, topics=parts())
DELETE_RECORDS = Request("delete_records", 2, topics=parts(offset=0), timeout=5000)
ADD_PARTITIONS = Request(
    "create_partitions", 3, topics=[{"name": NAME, "count": 2, "assignments": None}], timeout=5000, validate_only=True
)
CREATE_TOPIC = Request(
    "create_topics", 7, timeout=5000, validate_only=True,
    topics=[{"name": MISSING, "num_partitions": 1, "replication_factor": 1}],
)  # fmt: skip
EPOCHS = Request(
    "offset_for_leader_epoch", 4, replica_id=-1,
    topics=[{"topic": NAME, "partitions": [{"partition": 0, "current_leader_epoch": -1, "leader_epoch": 0}]}],
)  # fmt: skip
_TXN = {"transactional_id": NAME, "producer_id": 1, "producer_epoch": 0}
ADD_OFFSETS = Request("add_offsets_to_txn", 3, **_TXN, group_id=NAME)
HOLD_OFFSETS = Request(
    "txn_offset_commit", 3, **_TXN, group_id=NAME, generation_id=-1, member_id="",
    topics=parts(committed_offset=1, committed_leader_epoch=-1),
)  # fmt: skip
END = Request("end_txn", 3, **_TXN, committed=True)
NO_STATE = "INVALID_PRODUCER_ID_MAPPING"


@pytest.mark.parametrize(
    ("rules", "request_", "expected"),
    [
        pytest.param([], produced(), T29, marks=kafka("AuthorizerIntegrationTest.testProduceWithNoTopicAccess")),
        pytest.param(
            [topic(DESCRIBE)], produced(), T29, marks=kafka("AuthorizerIntegrationTest.testProduceWithTopicDescribe")
        ),
        pytest.param([topic(READ)], produced(), T29, marks=kafka("AuthorizerIntegrationTest.testProduceWithTopicRead")),
        pytest.param(
            [topic(WRITE)], produced(), "NONE", marks=kafka("AuthorizerIntegrationTest.testProduceWithTopicWrite")
        ),
        pytest.param(
            [cluster(Operation.IDEMPOTENT_WRITE), topic(WRITE)],
            produced(),
            "NONE",
            marks=kafka("AuthorizerIntegrationTest.shouldSendSuccessfullyWhenIdempotentAndHasCorrectACL"),
        ),
        pytest.param(
            [cluster(Operation.IDEMPOTENT_WRITE)],
            produced(),
            T29,
            marks=kafka("AuthorizerIntegrationTest.testIdempotentProducerNoIdempotentWriteAclInProduce"),
        ),
        pytest.param([], fetched(), T29, marks=kafka("AuthorizerIntegrationTest.testConsumeUsingAssignWithNoAccess")),
        pytest.param(
            [topic(DESCRIBE), group(READ)],
            fetched(),
            T29,
            marks=kafka("AuthorizerIntegrationTest.testConsumeWithTopicDescribe"),
        ),
        pytest.param(
            [topic(WRITE), group(READ)],
            fetched(),
            T29,
            marks=kafka("AuthorizerIntegrationTest.testConsumeWithTopicWrite"),
        ),
        pytest.param(
            [topic(READ), group(READ)],
            fetched(),
            "NONE",
            marks=kafka("AuthorizerIntegrationTest.testConsumeWithTopicAndGroupRead"),
        ),
        pytest.param(
            [topic(READ)],
            fetched(),
            "NONE",
            marks=kafka("AuthorizerIntegrationTest.testSimpleConsumeWithExplicitSeekAndNoGroupAccess"),
        ),
        pytest.param(
            [topic(READ)],
            offsets_fetched(),
            G30,
            marks=kafka("AuthorizerIntegrationTest.testSimpleConsumeWithOffsetLookupAndNoGroupAccess"),
        ),
        pytest.param(
            [topic(READ)],
            fetched(replica_id=3),
            T29,
            marks=kafka("AuthorizerIntegrationTest.testFetchFollowerRequest"),
        ),
        pytest.param([], COMMIT, G30, marks=kafka("AuthorizerIntegrationTest.testCommitWithNoAccess")),
        pytest.param([group(READ)], COMMIT, T29, marks=kafka("AuthorizerIntegrationTest.testCommitWithNoTopicAccess")),
        pytest.param(
            [group(READ), topic(WRITE)], COMMIT, T29, marks=kafka("AuthorizerIntegrationTest.testCommitWithTopicWrite")
        ),
        pytest.param(
            [group(READ), topic(DESCRIBE)],
            COMMIT,
            T29,
            marks=kafka("AuthorizerIntegrationTest.testCommitWithTopicDescribe"),
        ),
        pytest.param([topic(READ)], COMMIT, G30, marks=kafka("AuthorizerIntegrationTest.testCommitWithNoGroupAccess")),
        pytest.param(
            [group(READ), topic(READ)],
            COMMIT,
            "NONE",
            marks=kafka("AuthorizerIntegrationTest.testCommitWithTopicAndGroupRead"),
        ),
        pytest.param([], offsets_fetched(), G30, marks=kafka("AuthorizerIntegrationTest.testOffsetFetchWithNoAccess")),
        pytest.param(
            [topic(READ)],
            offsets_fetched(),
            G30,
            marks=kafka("AuthorizerIntegrationTest.testOffsetFetchWithNoGroupAccess"),
        ),
        pytest.param(
            [group(READ)],
            offsets_fetched(),
            T29,
            marks=kafka("AuthorizerIntegrationTest.testOffsetFetchWithNoTopicAccess"),
        ),
        pytest.param(
            [group(DESCRIBE), topic(DESCRIBE)],
            offsets_fetched(),
            "NONE",
            marks=kafka("AuthorizerIntegrationTest.testOffsetFetchTopicDescribe"),
        ),
        pytest.param(
            [group(READ), topic(READ)],
            offsets_fetched(),
            "NONE",
            marks=kafka("AuthorizerIntegrationTest.testOffsetFetchWithTopicAndGroupRead"),
        ),
        pytest.param([], metadata(), T29, marks=kafka("AuthorizerIntegrationTest.testMetadataWithNoTopicAccess")),
        pytest.param(
            [topic(DESCRIBE)],
            metadata(),
            "NONE",
            marks=kafka("AuthorizerIntegrationTest.testMetadataWithTopicDescribe"),
        ),
        pytest.param([], LIST_OFFSETS, T29, marks=kafka("AuthorizerIntegrationTest.testListOffsetsWithNoTopicAccess")),
        pytest.param(
            [topic(DESCRIBE)],
            LIST_OFFSETS,
            "NONE",
            marks=kafka("AuthorizerIntegrationTest.testListOffsetsWithTopicDescribe"),
        ),
        pytest.param(
            [topic(DESCRIBE)],
            DESCRIBE_GROUP,
            G30,
            marks=kafka("AuthorizerIntegrationTest.testDescribeGroupApiWithNoGroupAcl"),
        ),
        pytest.param(
            [group(DESCRIBE)],
            DESCRIBE_GROUP,
            "NONE",
            marks=kafka("AuthorizerIntegrationTest.testDescribeGroupApiWithGroupDescribe"),
        ),
        pytest.param([group(DELETE, MISSING)], DELETE_GROUP, "GROUP_ID_NOT_FOUND"),
        pytest.param(
            [group(READ, MISSING)],
            DELETE_GROUP,
            G30,
            marks=kafka("AuthorizerIntegrationTest.testDeleteGroupApiWithNoDeleteGroupAcl"),
        ),
        pytest.param(
            [], DELETE_GROUP, G30, marks=kafka("AuthorizerIntegrationTest.testDeleteGroupApiWithNoDeleteGroupAcl2")
        ),
        pytest.param(
            [group(DELETE), group(READ), topic(READ)],
            DELETE_OFFSETS,
            "NONE",
            marks=kafka("AuthorizerIntegrationTest.testDeleteGroupOffsetsWithAcl"),
        ),
        pytest.param(
            [group(READ), topic(READ)],
            DELETE_OFFSETS,
            G30,
            marks=kafka("AuthorizerIntegrationTest.testDeleteGroupOffsetsWithoutDeleteAcl"),
        ),
        pytest.param(
            [group(DELETE)],
            DELETE_OFFSETS,
            T29,
            marks=kafka("AuthorizerIntegrationTest.testDeleteGroupOffsetsWithDeleteAclWithoutTopicAcl"),
        ),
        pytest.param([], DELETE_OFFSETS, G30, marks=kafka("AuthorizerIntegrationTest.testDeleteGroupOffsetsWithNoAcl")),
        pytest.param(
            [],
            deleted_topic(),
            T29,
            marks=kafka("AuthorizerIntegrationTest.testUnauthorizedDeleteTopicsWithoutDescribe"),
        ),
        pytest.param(
            [topic(DESCRIBE)],
            deleted_topic(),
            T29,
            marks=kafka("AuthorizerIntegrationTest.testUnauthorizedDeleteTopicsWithDescribe"),
        ),
        pytest.param(
            [topic(DELETE, "*")],
            deleted_topic(MISSING),
            UNKNOWN,
            marks=kafka("AuthorizerIntegrationTest.testDeleteTopicsWithWildCardAuth"),
        ),
        pytest.param(
            [],
            DELETE_RECORDS,
            T29,
            marks=kafka("AuthorizerIntegrationTest.testUnauthorizedDeleteRecordsWithoutDescribe"),
        ),
        pytest.param(
            [topic(DESCRIBE)],
            DELETE_RECORDS,
            T29,
            marks=kafka("AuthorizerIntegrationTest.testUnauthorizedDeleteRecordsWithDescribe"),
        ),
        pytest.param(
            [topic(DELETE, "*")],
            DELETE_RECORDS,
            "NONE",
            marks=kafka("AuthorizerIntegrationTest.testDeleteRecordsWithWildCardAuth"),
        ),
        pytest.param(
            [], ADD_PARTITIONS, T29, marks=kafka("AuthorizerIntegrationTest.testUnauthorizedCreatePartitions")
        ),
        pytest.param(
            [topic(ALTER, "*")],
            ADD_PARTITIONS,
            "NONE",
            marks=kafka("AuthorizerIntegrationTest.testCreatePartitionsWithWildCardAuth"),
        ),
        pytest.param([topic(CREATE, MISSING)], CREATE_TOPIC, "NONE"),
        pytest.param([cluster(CREATE)], CREATE_TOPIC, "NONE"),
        pytest.param([topic(ALTER, MISSING)], CREATE_TOPIC, T29),
        pytest.param(
            [topic(ALL, NAME), cluster(Operation.CLUSTER_ACTION)],
            EPOCHS,
            "NONE",
            marks=kafka("AuthorizerIntegrationTest.testOffsetsForLeaderEpochClusterPermission"),
        ),
        pytest.param([], EPOCHS, T29),
        pytest.param(
            [transaction(DESCRIBE)],
            initialized(),
            X53,
            marks=kafka(
                "AuthorizerIntegrationTest.testTransactionalProducerInitTransactionsNoDescribeTransactionalIdAcl"
            ),
        ),
        pytest.param(
            [transaction(WRITE)],
            initialized(),
            "NONE",
            marks=kafka("AuthorizerIntegrationTest.shouldInitTransactionsWhenAclSet"),
        ),
        pytest.param(
            [topic(WRITE)],
            produced(NAME, attributes=0x10),
            X53,
            marks=kafka(
                "AuthorizerIntegrationTest."
                "shouldThrowTransactionalIdAuthorizationExceptionWhenNoTransactionAccessDuringSend"
            ),
        ),
        pytest.param(
            [topic(WRITE)],
            END,
            X53,
            marks=kafka(
                "AuthorizerIntegrationTest."
                "shouldThrowTransactionalIdAuthorizationExceptionWhenNoTransactionAccessOnEndTransaction"
            ),
        ),
        pytest.param(
            [group(READ), topic(READ)],
            ADD_OFFSETS,
            X53,
            marks=kafka(
                "AuthorizerIntegrationTest."
                "shouldThrowTransactionalIdAuthorizationExceptionWhenNoTransactionAccessOnSendOffsetsToTxn"
            ),
        ),
        pytest.param(
            [transaction(WRITE)],
            ADD_OFFSETS,
            G30,
            marks=kafka("AuthorizerIntegrationTest.testSendOffsetsWithNoConsumerGroupDescribeAccess"),
        ),
        pytest.param(
            [transaction(WRITE), group(DESCRIBE)],
            HOLD_OFFSETS,
            G30,
            marks=kafka("AuthorizerIntegrationTest.testSendOffsetsWithNoConsumerGroupWriteAccess"),
        ),
        pytest.param([transaction(WRITE), group(READ)], HOLD_OFFSETS, T29),
        pytest.param(
            [cluster(Operation.ALTER_CONFIGS)],
            configured(8, "1"),
            C31,
            marks=kafka(
                "AuthorizerIntegrationTest.testIncrementalAlterConfigsRequestRequiresClusterPermissionForBrokerLogger"
            ),
        ),
    ],
)
def test_a_request_is_answered_by_the_rules_of_its_client(
    broker: KorvetServer, rules: Sequence[Acl], request_: Request, expected: str
) -> None:
    set_rules(broker, *rules)
    assert request_.codes(broker) == {expected}


@kafka("AuthorizerIntegrationTest.testOffsetFetchAllTopicPartitionsAuthorization")
def test_offsets_of_all_topics_leave_out_those_that_the_client_may_not_describe(broker: KorvetServer) -> None:
    set_rules(broker, group(READ), topic(READ))
    assert COMMIT.codes(broker) == {"NONE"}
    set_rules(broker, group(READ))
    (hidden,) = offsets_fetched(all_topics=True).answer(broker)["groups"]
    set_rules(broker, group(READ), topic(DESCRIBE))
    (shown,) = offsets_fetched(all_topics=True).answer(broker)["groups"]
    assert (hidden["error_code"], hidden["topics"]) == ("NONE", [])
    assert [one["name"] for one in shown["topics"]] == [NAME]


@kafka("AuthorizerIntegrationTest.testClusterId")
def test_metadata_without_topics_needs_no_right_and_tells_the_cluster(broker: KorvetServer) -> None:
    set_rules(broker)
    answer = ask(broker.port, "metadata", 12, topics=[])
    assert answer["topics"] == [] and answer["cluster_id"]


@kafka(
    "AuthorizerIntegrationTest.testDescribeClusterClusterAuthorizedOperationsWithoutDescribeCluster",
    "AuthorizerIntegrationTest.testDescribeClusterClusterAuthorizedOperationsWithDescribeAndAlterCluster",
)
@pytest.mark.parametrize("version", [0, 1, 2])
def test_operations_on_the_cluster_are_told_to_a_client_that_may_describe_it(
    broker: KorvetServer, version: int
) -> None:
    def told() -> int:
        values = {"include_cluster_authorized_operations": True, "endpoint_type": 1}
        return int(ask(broker.port, "describe_cluster", version, **values)["cluster_authorized_operations"])

    set_rules(broker)
    assert told() == 0
    set_rules(broker, cluster(DESCRIBE), cluster(ALTER))
    assert told() == 1 << DESCRIBE | 1 << ALTER


@kafka("AuthorizerIntegrationTest.testAuthorizeByResourceTypeMultipleAddAndRemove")
def test_a_producer_id_follows_each_change_of_the_rules(broker: KorvetServer) -> None:
    for _ in range(3):
        for operation, expected in ((DESCRIBE, C31), (WRITE, "NONE"), (DESCRIBE, C31)):
            set_rules(broker, topic(operation))
            assert initialized(None).codes(broker) == {expected}


@kafka("AuthorizerIntegrationTest.testDeleteGroupApiWithDeleteGroupAcl")
def test_a_group_that_the_client_may_delete_is_gone(broker: KorvetServer) -> None:
    name = unique("gone")
    set_rules(broker, group(READ, name), group(DELETE, name), topic(READ))
    offsets = parts(committed_offset=5, committed_leader_epoch=-1)
    values = {"group_id": name, "generation_id_or_member_epoch": -1, "member_id": "", "topics": offsets}
    assert Request("offset_commit", 8, **values).codes(broker) == {"NONE"}
    deletion = Request("delete_groups", 2, groups_names=[name])
    assert deletion.codes(broker) == {"NONE"}
    assert deletion.codes(broker) == {"GROUP_ID_NOT_FOUND"}


@pytest.fixture(scope="module")
def creating() -> Iterator[KorvetServer]:
    """A broker on which Metadata creates topics."""
    with running_broker(broker=TURNED_ON) as running:
        yield running


@kafka(
    "AuthorizerIntegrationTest.testCreatePermissionMetadataRequestAutoCreate",
    "AuthorizerIntegrationTest.testCreatePermissionOnTopicToReadFromNonExistentTopic",
    "AuthorizerIntegrationTest.testCreatePermissionOnTopicToWriteToNonExistentTopic",
    "AuthorizerIntegrationTest.testCreatePermissionOnClusterToReadFromNonExistentTopic",
    "AuthorizerIntegrationTest.testCreatePermissionOnClusterToWriteToNonExistentTopic",
)
@pytest.mark.parametrize("operation", [READ, WRITE])
@pytest.mark.parametrize("is_of_cluster", [False, True])
def test_metadata_creates_a_topic_only_for_a_client_that_may_create_it(
    creating: KorvetServer, operation: Operation, is_of_cluster: bool
) -> None:
    name = unique()
    set_rules(creating, topic(operation, name))
    assert metadata(name).codes(creating) == {T29}
    set_rules(creating, topic(operation, name), cluster(CREATE) if is_of_cluster else topic(CREATE, name))
    assert metadata(name).codes(creating) == {"NONE"}
