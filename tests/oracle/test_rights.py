"""Clients with different rights get the same answers from korvet as from Apache Kafka with its StandardAuthorizer."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from itertools import chain
from typing import Any
from uuid import UUID

import pytest

from tests.api.raw import ask
from tests.oracle.frames import Pipeline, differences, requests
from tests.oracle.requests import REQUESTS
from tests.oracle.rights import CLIENTS, SECRET, Client
from tests.oracle.secured import Secured
from tests.oracle.versions import ADVERTISED
from tests.support.ported import kafka
from tests.support.waiting import until


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A broker with all clients' rules, topics and groups."""

    broker: Secured
    topic_ids: Mapping[str, UUID]

    def connected(self, client: Client) -> Pipeline:
        """A connection on which a client is logged in."""
        return Pipeline(self.broker.login, client, self.topic_ids)


@pytest.fixture(scope="module")
def at_kafka(secured_kafka: Secured) -> Prepared:
    return prepared(secured_kafka)


@pytest.fixture(scope="module")
def at_newest_kafka(newest_secured_kafka: Secured) -> Prepared:
    return prepared(newest_secured_kafka)


@pytest.fixture(scope="module")
def at_korvet(secured_korvet: Secured) -> Prepared:
    return prepared(secured_korvet)


@pytest.fixture(scope="module")
def at_korvet_as_newest(korvet_as_newest: Secured) -> Prepared:
    return prepared(korvet_as_newest)


def prepared(broker: Secured) -> Prepared:
    """The broker with what all clients need; it returns when all of it is in force."""
    port = broker.port
    creations = [
        {
            "resource_type": acl.resource_type, "resource_name": acl.name, "resource_pattern_type": acl.pattern_type,
            "principal": acl.principal, "host": acl.host, "operation": acl.operation, "permission_type": acl.permission,
        }
        for acl in dict.fromkeys(chain.from_iterable(client.rules for client in CLIENTS))
    ]  # fmt: skip
    results = ask(port, "create_acls", 3, creations=creations)["results"]
    assert {one["error_code"] for one in results} == {"NONE"}
    names = [SECRET, *(client.names["t"] for client in CLIENTS)]
    topics = [{"name": name, "num_partitions": 1, "replication_factor": 1} for name in names]
    answer = ask(port, "create_topics", 7, topics=topics, timeout=30_000)
    assert {one["error_code"] for one in answer["topics"]} == {"NONE"}
    wanted = {tuple(creation.values()) for creation in creations}
    until(lambda: wanted <= _described(port))
    until(lambda: _coordinates(port))
    for client in CLIENTS:
        until(lambda client=client: _committed(port, client))  # type: ignore[misc]
    return Prepared(broker=broker, topic_ids={one["name"]: one["topic_id"] for one in answer["topics"]})


def _described(port: int) -> set[tuple[Any, ...]]:
    """The broker's rules, in the order of a creation's fields; other tests may have left some."""
    anything = {"resource_type_filter": 1, "pattern_type_filter": 1, "operation": 1, "permission_type": 1}
    return {
        (
            one["resource_type"], one["resource_name"], one["pattern_type"],
            acl["principal"], acl["host"], acl["operation"], acl["permission_type"],
        )
        for one in ask(port, "describe_acls", 3, **anything)["resources"]
        for acl in one["acls"]
    }  # fmt: skip


def _coordinates(port: int) -> bool:
    """Whether transactions have a coordinator, for which Kafka makes a topic at the first request."""
    asked = {"transactional_id": "first", "transaction_timeout": 1000, "producer_id": -1, "producer_epoch": -1}
    ask(port, "find_coordinator", 4, key_type=1, coordinator_keys=["first"])
    return bool(ask(port, "init_producer_id", 4, **asked)["error_code"] == "NONE")


def _committed(port: int, client: Client) -> bool:
    """Commit an offset of the client's group; whether it is done."""
    partitions = [{"partition_index": 0, "committed_offset": 0, "committed_leader_epoch": -1}]
    answer = ask(
        port, "offset_commit", 8, group_id=client.names["g"], generation_id_or_member_epoch=-1, member_id="",
        topics=[{"name": client.names["t"], "partitions": partitions}],
    )  # fmt: skip
    return bool(answer["topics"][0]["partitions"][0]["error_code"] == "NONE")


def test_clients_call_each_api_that_looks_at_rights() -> None:
    assert {api for api, _ in REQUESTS} == set(ADVERTISED) - {"api_versions", "sasl_handshake", "sasl_authenticate"}


@kafka(
    "AuthorizerIntegrationTest.shouldInitTransactionsWhenAclSet shouldSendSuccessfullyWhenIdempotentAndHasCorrectACL "
    "shouldSuccessfullyAbortTransactionAfterTopicAuthorizationException "
    "shouldThrowTransactionalIdAuthorizationExceptionWhenNoTransactionAccessDuringSend "
    "shouldThrowTransactionalIdAuthorizationExceptionWhenNoTransactionAccessOnEndTransaction "
    "shouldThrowTransactionalIdAuthorizationExceptionWhenNoTransactionAccessOnSendOffsetsToTxn "
    "testAuthorizationFetchVersionFromOldestTo12 testAuthorizationProduceVersionFromOldestTo12 "
    "testAuthorizeByResourceTypeDenyTakesPrecedence "
    "testAuthorizeByResourceTypeIsolationUnrelatedDenyWontDominateAllow "
    "testAuthorizeByResourceTypeMultipleAddAndRemove testAuthorizeByResourceTypePrefixedResourceDenyDominate "
    "testAuthorizeByResourceTypeWildcardResourceDenyDominate testClusterId testCommitWithNoAccess "
    "testCommitWithNoGroupAccess testCommitWithNoTopicAccess testCommitWithTopicAndGroupRead "
    "testCommitWithTopicDescribe testCommitWithTopicWrite testConsumeUsingAssignWithNoAccess "
    "testConsumeWithTopicAndGroupRead testConsumeWithTopicDescribe testConsumeWithTopicWrite "
    "testConsumerGroupDescribeWithOperationAll testConsumerGroupDescribeWithoutGroupDescribeAcl "
    "testConsumerGroupDescribeWithoutGroupDescribeOrTopicDescribeAcl testConsumerGroupHeartbeatWithOperationAll "
    "testConsumerGroupHeartbeatWithRegex testConsumerGroupHeartbeatWithoutGroupReadAcl "
    "testConsumerGroupHeartbeatWithoutGroupReadOrTopicDescribeAcl testConsumerGroupHeartbeatWithoutTopicDescribeAcl "
    "testCreatePartitionsWithWildCardAuth testCreateTopicAuthorizationWithClusterCreate "
    "testDeleteGroupApiWithDeleteGroupAcl testDeleteGroupApiWithNoDeleteGroupAcl "
    "testDeleteGroupApiWithNoDeleteGroupAcl2 testDeleteGroupOffsetsWithAcl "
    "testDeleteGroupOffsetsWithDeleteAclWithoutTopicAcl testDeleteGroupOffsetsWithNoAcl "
    "testDeleteGroupOffsetsWithoutDeleteAcl testDeleteRecordsWithWildCardAuth testDeleteTopicsWithWildCardAuth "
    "testDescribeClusterClusterAuthorizedOperationsWithDescribeAndAlterCluster "
    "testDescribeClusterClusterAuthorizedOperationsWithoutDescribeCluster testDescribeGroupApiWithGroupDescribe "
    "testDescribeGroupApiWithNoGroupAcl testDescribeGroupConfigsWithDescribeAcl "
    "testDescribeGroupConfigsWithOperationAll testDescribeGroupConfigsWithoutDescribeAcl "
    "testDescribeTopicAclWithOperationAll testDescribeTopicConfigsAclWithOperationAll "
    "testEmptyTopicNameForProduceVersionFromOldestTo12 testFetchFollowerRequest testHostAddressBasedAcls "
    "testIdempotentProducerNoIdempotentWriteAclInInitProducerId testIdempotentProducerNoIdempotentWriteAclInProduce "
    "testIncrementalAlterGroupConfigsWithAlterAcl testIncrementalAlterGroupConfigsWithOperationAll "
    "testIncrementalAlterGroupConfigsWithoutAlterAcl testListGroupApiWithAndWithoutListGroupAcls "
    "testListOffsetsWithNoTopicAccess testListOffsetsWithTopicDescribe "
    "testMetadataClusterAuthorizedOperationsWithDescribeAndAlterCluster "
    "testMetadataClusterAuthorizedOperationsWithoutDescribeCluster testMetadataWithNoTopicAccess "
    "testMetadataWithTopicDescribe testOffsetFetchAllTopicPartitionsAuthorization "
    "testOffsetFetchMultipleGroupsAuthorization testOffsetFetchTopicDescribe testOffsetFetchWithNoAccess "
    "testOffsetFetchWithNoGroupAccess testOffsetFetchWithNoTopicAccess testOffsetFetchWithTopicAndGroupRead "
    "testOffsetsForLeaderEpochClusterPermission testPrefixAcls testProduceWithNoTopicAccess "
    "testProduceWithTopicDescribe testProduceWithTopicRead testProduceWithTopicWrite "
    "testRetryProducerInitializationAfterPermissionFix testSendOffsetsWithNoConsumerGroupDescribeAccess "
    "testSendOffsetsWithNoConsumerGroupWriteAccess testSimpleConsumeWithExplicitSeekAndNoGroupAccess "
    "testSimpleConsumeWithOffsetLookupAndNoGroupAccess "
    "testTransactionalProducerInitTransactionsNoDescribeTransactionalIdAcl "
    "testTransactionalProducerInitTransactionsNoWriteTransactionalIdAcl "
    "testTransactionalProducerTopicAuthorizationExceptionInSendCallback testUnauthorizedCreatePartitions "
    "testUnauthorizedDeleteRecordsWithDescribe testUnauthorizedDeleteRecordsWithoutDescribe "
    "testUnauthorizedDeleteTopicsWithDescribe testUnauthorizedDeleteTopicsWithoutDescribe "
    "testZeroTopicIdForProduceVersionFrom13ToNewest",
    "DescribeAuthorizedOperationsTest.testDescribeCluster testDescribeTopics",
)
@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.title.replace(" ", "-"))
@pytest.mark.parametrize(
    "at_edges", [True, pytest.param(False, marks=pytest.mark.all)], ids=["edges", "other-versions"]
)
def test_korvet_answers_a_client_as_kafka(
    client: Client, at_edges: bool, at_kafka: Prepared, at_korvet: Prepared
) -> None:
    with closing(at_kafka.connected(client)) as theirs, closing(at_korvet.connected(client)) as ours:
        found = differences(theirs, ours, requests(at_edges))
    assert not found, "\n" + "\n".join(found)


@pytest.mark.all
@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.title.replace(" ", "-"))
def test_korvet_answers_a_client_as_the_newest_kafka(
    client: Client, at_newest_kafka: Prepared, at_korvet_as_newest: Prepared
) -> None:
    with closing(at_newest_kafka.connected(client)) as theirs, closing(at_korvet_as_newest.connected(client)) as ours:
        found = differences(theirs, ours, requests(True, of_newest=True))
    assert not found, "\n" + "\n".join(found)
