"""Every script, at every version that Apache Kafka serves, gets the same answers from Kafka and from korvet.

Each run plays the versions at which an answer may change (`edges`), and `./scripts/test all` plays all of them. Only it
starts the newest Kafka, for versions that the other one does not serve.
"""

import ast
import re
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.oracle.compare import mismatches, surprises
from tests.oracle.script import Script, new_variables, play
from tests.oracle.scripts import SCRIPTS
from tests.oracle.scripts.cluster import UNSUPPORTED
from tests.oracle.versions import ADVERTISED, edges, needs_newest
from tests.support.broker import ROOT
from tests.support.ported import kafka

CASES = [
    pytest.param(
        script,
        version,
        id=f"{script.name.replace(' ', '-')}-v{version}",
        marks=() if version in script.edge_versions() and not needs_newest(script.api, version) else pytest.mark.all,
    )
    for script in SCRIPTS
    for version in script.played_versions()
]


@kafka(
    "AddPartitionsToTxnManagerTest.testAddPartitionsToTxnHandlerErrorHandling",
    "AddPartitionsToTxnRequestServerTest.shouldReceiveOperationNotAttemptedWhenOtherPartitionHasError testVerifyOnly",
    "AlterUserScramCredentialsRequestTest.testAlterAndDescribe testAlterEmptyUser testAlterNothing "
    "testAlterSameThingTwice testAlterTooFewIterations testAlterTooManyIterations testAlterUnknownMechanism "
    "testDeleteSomethingThatDoesNotExist",
    "ClassicGroupTest.testIsInStates",
    "ClientQuotasRequestTest.testAlterClientQuotasRequest testAlterClientQuotasRequestValidateOnly "
    "testAlterIpQuotasRequest testClientQuotasUnsupportedEntityTypes testDescribeClientQuotasInvalidFilterCombination "
    "testDescribeClientQuotasMatchExact testDescribeClientQuotasMatchPartial",
    "ControllerConfigurationValidatorTest.testInvalidGroupNameGroupConfig",
    "DescribeUserScramCredentialsRequestTest.testDescribeNothing testDescribeSameUserTwice testDescribeWithNull "
    "testUnknownUser",
    "GroupConfigTest.testFromPropsInvalid testInvalidProps",
    "GroupCoordinatorServiceTest.testConsumerHeartbeatRequestValidation testDeleteGroups testDeleteOffsets "
    "testDeleteOffsetsInvalidGroupId testDescribeGroups testDescribeGroupsInvalidGroupId testFetchAllOffsets "
    "testFetchOffsets testHeartbeat testHeartbeatCoordinatorException testJoinGroup testJoinGroupInvalidGroupId "
    "testLeaveGroup testListGroups testSyncGroup testSyncGroupInvalidGroupId",
    "GroupCoordinatorTest.testDescribeGroupInactiveGroup testInvalidGroupId "
    "testJoinGroupProtocolTypeIsNotProvidedWhenAnErrorOccurs testListGroupsWithStates testListGroupsWithTypes",
    "GroupMetadataManagerTest.testConsumerHeartbeatRegexValidation testDescribeGroupsBeforeV6GroupIdNotFoundException "
    "testJoinGroupProtocolTypeIsNotProvidedWhenAnErrorOccurs testListGroups testMemberIdGeneration",
    "OffsetMetadataManagerTest.testConsumerGroupOffsetCommitWithOffsetMetadataTooLarge "
    "testGenericGroupOffsetCommitWithRetentionTime",
    "ProducerIntegrationTest.testTransactionWithAndWithoutSend testTransactionWithSendOffset",
    "TransactionCoordinatorTest.shouldRespondWithInvalidRequestAddPartitionsToTransactionWhenTransactionalIdIsEmpty "
    "shouldRespondWithInvalidRequestOnEndTxnWhenTransactionalIdIsEmpty "
    "shouldReturnInvalidRequestWhenTransactionalIdIsEmpty",
    "TransactionStateManagerTest.testValidateTransactionTimeout",
    "TransactionsTest.testBasicTransactions testBumpTransactionalEpochWithTV2Disabled "
    "testBumpTransactionalEpochWithTV2Enabled testEmptyAbortAfterCommit testFencingOnAddPartitions "
    "testFencingOnCommit testFencingOnSend testFencingOnSendOffsets testOffsetMetadataInSendOffsetsToTransaction "
    "testReadCommittedConsumerShouldNotSeeUndecidedData",
    "UnifiedLogTest.testMessageSizeCheck",
)
@pytest.mark.parametrize(("script", "version"), CASES)
def test_korvet_answers_as_kafka(
    script: Script, version: int, korvet_address: str, request: pytest.FixtureRequest
) -> None:
    kafka_address = request.getfixturevalue(f"{'newest_' * needs_newest(script.api, version)}kafka_address")
    variables = new_variables()
    # Both brokers play at the same time, because some scripts wait for timeouts.
    with ThreadPoolExecutor(2) as threads:
        both = [threads.submit(play, script, version, to, variables) for to in (kafka_address, korvet_address)]
    kafka = both[0].result()
    wrong = surprises(kafka)
    assert not wrong, "\n" + "\n".join(wrong)
    korvet = both[1].result()
    found = mismatches(script.name, kafka, korvet)
    assert not found, "\n" + "\n".join(found)


def test_each_run_plays_both_sides_of_every_change_of_an_api() -> None:
    played = {
        (script.api, version) for script in SCRIPTS if script not in UNSUPPORTED for version in script.edge_versions()
    }
    assert {(api, version) for api in ADVERTISED for version in edges(api)} <= played


def test_handlers_compare_a_version_only_with_constants_by_which_it_is_played() -> None:
    found = [
        compared
        for path in (ROOT / "korvet" / "api").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Compare) and re.search(r"\bversion\b", compared := ast.unparse(node))
    ]
    assert len(found) > 20
    assert [compared for compared in found if not re.search(r"SINCE\b|_since\b", compared)] == []
