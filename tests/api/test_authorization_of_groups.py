"""Kafka's cases of rights that need more than one rule or request: consumer groups, configs, hosts, prefixes, ids."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any
from uuid import UUID, uuid4

import pytest

from korvet.security.acl import Acl, Operation, PatternType, Permission, ResourceType
from tests.api.acls import TURNED_ON, everything, rule, set_rules
from tests.api.raw import ask, create_topics, created, unique
from tests.api.test_authorization import codes, put
from tests.api.test_authorization_cases import (
    ALL,
    CREATE,
    DESCRIBE,
    G30,
    NAME,
    READ,
    T29,
    WRITE,
    X53,
    Request,
    fetched,
    group,
    initialized,
    metadata,
    parts,
    produced,
    topic,
    transaction,
)
from tests.oracle.versions import supported
from tests.support.broker import KorvetServer, running_broker
from tests.support.ported import kafka

TOPIC, GROUP = ResourceType.TOPIC, ResourceType.GROUP
TOPIC_TYPE, GROUP_TYPE = 2, 32
ELSEWHERE, SEVERAL = "elsewhere", ("group1", "group2", "group3")


@pytest.fixture(scope="module")
def broker() -> Iterator[KorvetServer]:
    """A broker with a topic, and a consumer group of that name whose member has the topic."""
    with running_broker(broker={**TURNED_ON, "auto.create.topics.enable": "false"}) as running:
        set_rules(running, *everything())
        created(running.port, NAME)
        created(running.port, ELSEWHERE)
        assert heartbeat().codes(running) == {"NONE"}
        yield running


def heartbeat(member_id: str = "Zm9vYmFyYmF6cXV4eHl6eg", **changed: Any) -> Request:
    asked = {"subscribed_topic_names": [NAME], "subscribed_topic_regex": None, **changed}
    return Request(
        "consumer_group_heartbeat", 1, group_id=NAME, member_id=member_id, member_epoch=0, rebalance_timeout=300_000,
        topic_partitions=[], **asked,
    )  # fmt: skip


def by_expression(name: str) -> Request:
    return heartbeat(name, subscribed_topic_names=None, subscribed_topic_regex="^cas.*")


DESCRIBE_GROUP = Request("consumer_group_describe", 1, group_ids=[NAME])


def configs(api: str, kind: int, **values: Any) -> Request:
    return Request(api, 1, resources=[{"resource_type": kind, "resource_name": NAME, **values}])


CHANGE = configs(
    "incremental_alter_configs",
    GROUP_TYPE,
    configs=[{"name": "consumer.session.timeout.ms", "config_operation": 0, "value": "50000"}],
)
SEE_GROUP = configs("describe_configs", GROUP_TYPE, configuration_keys=None)
SEE_TOPIC = configs("describe_configs", TOPIC_TYPE, configuration_keys=None)
ALTER_CONFIGS, DESCRIBE_CONFIGS = Operation.ALTER_CONFIGS, Operation.DESCRIBE_CONFIGS
DENY = Permission.DENY


@pytest.mark.parametrize(
    ("rules", "request_", "expected"),
    [
        ([group(READ), topic(DESCRIBE)], heartbeat(), "NONE"),
        ([group(ALL), topic(ALL)], heartbeat(), "NONE"),
        ([], heartbeat(), G30),
        ([topic(DESCRIBE)], heartbeat(), G30),
        ([group(READ)], heartbeat(), T29),
        ([group(ALL), topic(DESCRIBE, "*")], by_expression("ZXhwcmVzc2lvbnRlc3QxMg"), "NONE"),
        ([group(DESCRIBE), topic(DESCRIBE)], DESCRIBE_GROUP, "NONE"),
        ([group(ALL), topic(ALL)], DESCRIBE_GROUP, "NONE"),
        ([], DESCRIBE_GROUP, G30),
        ([topic(DESCRIBE)], DESCRIBE_GROUP, G30),
        ([group(DESCRIBE)], DESCRIBE_GROUP, T29),
        ([group(ALTER_CONFIGS)], CHANGE, "NONE"),
        ([group(ALL)], CHANGE, "NONE"),
        ([], CHANGE, G30),
        ([group(DESCRIBE_CONFIGS)], SEE_GROUP, "NONE"),
        ([group(ALL)], SEE_GROUP, "NONE"),
        ([], SEE_GROUP, G30),
        ([topic(ALL)], SEE_TOPIC, "NONE"),
        ([topic(ALL)], metadata(), "NONE"),
        ([rule(TOPIC, NAME, DESCRIBE, host="127.0.0.1")], metadata(), "NONE"),
        ([rule(TOPIC, NAME, DESCRIBE, host="127.0.0.2")], metadata(), T29),
        ([topic(WRITE)], initialized(None), "NONE"),
        ([topic(WRITE), rule(TOPIC, NAME, WRITE, DENY)], initialized(None), "CLUSTER_AUTHORIZATION_FAILED"),
        ([topic(WRITE), rule(TOPIC, "*", WRITE, DENY)], initialized(None), "CLUSTER_AUTHORIZATION_FAILED"),
        (
            [topic(WRITE), rule(TOPIC, NAME[:1], WRITE, DENY, PatternType.PREFIXED)],
            initialized(None),
            "CLUSTER_AUTHORIZATION_FAILED",
        ),
        (
            [
                topic(WRITE),
                rule(TOPIC, NAME, READ, DENY),
                rule(TOPIC, "cases-2", WRITE, DENY),
                rule(TOPIC, NAME, WRITE, DENY, principal="User:unrelated"),
                rule(GROUP, NAME[:2], WRITE, DENY, PatternType.PREFIXED),
            ],
            initialized(None),
            "NONE",
        ),
    ],
)
@kafka(
    "AuthorizerIntegrationTest.testConsumerGroupHeartbeatWithGroupReadAndTopicDescribeAcl",
    "AuthorizerIntegrationTest.testConsumerGroupHeartbeatWithOperationAll",
    "AuthorizerIntegrationTest.testConsumerGroupHeartbeatWithoutGroupReadOrTopicDescribeAcl",
    "AuthorizerIntegrationTest.testConsumerGroupHeartbeatWithoutGroupReadAcl",
    "AuthorizerIntegrationTest.testConsumerGroupHeartbeatWithoutTopicDescribeAcl",
    "AuthorizerIntegrationTest.testConsumerGroupHeartbeatWithRegex",
    "AuthorizerIntegrationTest.testConsumerGroupDescribeWithGroupDescribeAndTopicDescribeAcl",
    "AuthorizerIntegrationTest.testConsumerGroupDescribeWithOperationAll",
    "AuthorizerIntegrationTest.testConsumerGroupDescribeWithoutGroupDescribeAcl",
    "AuthorizerIntegrationTest.testConsumerGroupDescribeWithoutTopicDescribeAcl",
    "AuthorizerIntegrationTest.testConsumerGroupDescribeWithoutGroupDescribeOrTopicDescribeAcl",
    "AuthorizerIntegrationTest.testIncrementalAlterGroupConfigsWithAlterAcl",
    "AuthorizerIntegrationTest.testIncrementalAlterGroupConfigsWithOperationAll",
    "AuthorizerIntegrationTest.testIncrementalAlterGroupConfigsWithoutAlterAcl",
    "AuthorizerIntegrationTest.testDescribeGroupConfigsWithDescribeAcl",
    "AuthorizerIntegrationTest.testDescribeGroupConfigsWithOperationAll",
    "AuthorizerIntegrationTest.testDescribeGroupConfigsWithoutDescribeAcl",
    "AuthorizerIntegrationTest.testDescribeTopicConfigsAclWithOperationAll",
    "AuthorizerIntegrationTest.testDescribeTopicAclWithOperationAll",
    "AuthorizerIntegrationTest.testHostAddressBasedAcls",
    "AuthorizerIntegrationTest.testAuthorizeByResourceTypeDenyTakesPrecedence",
    "AuthorizerIntegrationTest.testAuthorizeByResourceTypeWildcardResourceDenyDominate",
    "AuthorizerIntegrationTest.testAuthorizeByResourceTypePrefixedResourceDenyDominate",
    "AuthorizerIntegrationTest.testAuthorizeByResourceTypeIsolationUnrelatedDenyWontDominateAllow",
)
def test_a_request_is_answered_by_all_rules_together(
    broker: KorvetServer, rules: Sequence[Acl], request_: Request, expected: str
) -> None:
    set_rules(broker, *rules)
    assert request_.codes(broker) == {expected}


@kafka("AuthorizerIntegrationTest.testPrefixAcls")
def test_a_topic_is_created_by_a_rule_for_its_prefix_whatever_others_may_not(broker: KorvetServer) -> None:
    prefixed = PatternType.PREFIXED
    set_rules(
        broker,
        rule(TOPIC, "f", CREATE, pattern=prefixed),
        rule(TOPIC, "fooa", CREATE, DENY, prefixed, principal="User:other"),
        rule(TOPIC, "foob", CREATE, pattern=prefixed, principal="User:other"),
    )
    assert [one["error_code"] for one in create_topics(broker.port, {"name": "foobar"}, {"name": "goobar"})] == [
        "NONE",
        T29,
    ]


@kafka("AuthorizerIntegrationTest.testRetryProducerInitializationAfterPermissionFix")
def test_a_producer_goes_on_once_it_has_the_right_that_it_lacked(broker: KorvetServer) -> None:
    set_rules(broker, rule(TOPIC, "*", WRITE, DENY))
    assert put(broker, NAME) == T29
    set_rules(broker, rule(TOPIC, NAME[:1], WRITE, pattern=PatternType.PREFIXED), topic(WRITE))
    assert put(broker, NAME) == "NONE"


@kafka("AuthorizerIntegrationTest.testOffsetFetchMultipleGroupsAuthorization")
def test_each_group_of_a_request_is_answered_by_the_rules_of_its_own(broker: KorvetServer) -> None:
    topics = [{"name": name, "partition_indexes": [0]} for name in (NAME, ELSEWHERE)]
    asked: list[dict[str, Any]] = [
        {"group_id": SEVERAL[0], "topics": topics[:1]},
        {"group_id": SEVERAL[1], "topics": topics},
    ]
    asked.append({"group_id": SEVERAL[2], "topics": None})
    set_rules(broker, *everything())
    for name in SEVERAL:
        values = {"group_id": name, "generation_id_or_member_epoch": -1, "member_id": ""}
        offsets = [part for one in (NAME, ELSEWHERE) for part in parts(one, committed_offset=5)]
        assert Request("offset_commit", 8, **values, topics=offsets).codes(broker) == {"NONE"}

    def seen() -> list[Any]:
        answer = ask(broker.port, "offset_fetch", 8, groups=asked)["groups"]
        return [
            one["error_code"] if one["error_code"] != "NONE" else [codes(named) for named in one["topics"]]
            for one in answer
        ]

    good, bad = {"NONE"}, {T29}
    set_rules(broker)
    assert seen() == [G30] * 3
    set_rules(broker, group(READ, SEVERAL[0]), group(READ, SEVERAL[2]), topic(READ), topic(READ, ELSEWHERE))
    assert seen() == [[good], G30, [good, good]]
    set_rules(broker, *(group(READ, name) for name in SEVERAL), topic(READ))
    assert seen() == [[good], [good, bad], [good]]
    set_rules(broker, *everything())
    assert seen() == [[good], [good, good], [good, good]]


@kafka(
    "AuthorizerIntegrationTest.testListTransactionsAuthorization",
    "AuthorizerIntegrationTest.shouldNotIncludeUnauthorizedTopicsInDescribeTransactionsResponse",
    "AuthorizerIntegrationTest.testTransactionalProducerTopicAuthorizationExceptionInSendCallback",
    "AuthorizerIntegrationTest.shouldSuccessfullyAbortTransactionAfterTopicAuthorizationException",
)
def test_a_transaction_is_shown_with_the_topics_that_the_client_may_describe(broker: KorvetServer) -> None:
    name = unique("txn")
    mine = transaction(WRITE)._replace(name=name)
    set_rules(broker, mine, topic(WRITE))
    begun = initialized(name).answer(broker)
    owner = {key: begun[key] for key in ("producer_id", "producer_epoch")}

    def add(*topics: str) -> set[str]:
        return Request(
            "add_partitions_to_txn", 3, v3_and_below_transactional_id=name,
            v3_and_below_topics=[{"name": one, "partitions": [0]} for one in topics],
            **{f"v3_and_below_{key}": value for key, value in owner.items()},
        ).codes(broker)  # fmt: skip

    def listed() -> list[str]:
        answer = ask(broker.port, "list_transactions", 0)["transaction_states"]
        return [one["transactional_id"] for one in answer]

    def described() -> tuple[str, list[str]]:
        (state,) = ask(broker.port, "describe_transactions", 0, transactional_ids=[name])["transaction_states"]
        return state["error_code"], [one["topic"] for one in state["topics"]]

    assert add(NAME) == {"NONE"}
    assert add(ELSEWHERE) == {T29}
    assert (listed(), described()) == ([name], ("NONE", [NAME]))
    set_rules(broker, mine)
    assert (listed(), described()) == ([name], ("NONE", []))
    set_rules(broker, topic(WRITE))
    assert (listed(), described()[0]) == ([], X53)
    set_rules(broker, mine._replace(operation=DESCRIBE))
    assert listed() == [name]
    set_rules(broker, mine)
    assert Request("end_txn", 3, transactional_id=name, committed=False, **owner).codes(broker) == {"NONE"}


@kafka("AuthorizerIntegrationTest.testTopicIdAuthorization")
@pytest.mark.parametrize("operations", [[], [DESCRIBE]])
def test_an_id_tells_of_its_topic_only_to_a_client_that_may_describe_it(
    broker: KorvetServer, operations: list[Operation]
) -> None:
    set_rules(broker, topic(DESCRIBE))
    known = ask(broker.port, "metadata", 12, topics=[{"name": NAME}])["topics"][0]["topic_id"]
    set_rules(broker, *map(topic, operations))
    for asked, expected in ((known, T29), (uuid4(), "UNKNOWN_TOPIC_ID")):
        (deleted,) = ask(broker.port, "delete_topics", 6, topics=[{"topic_id": asked}], timeout=1000)["responses"]
        shown = NAME if asked == known and operations else None
        assert (deleted["error_code"], deleted["name"]) == (expected, shown)


@kafka(
    "AuthorizerIntegrationTest.testAuthorizationProduceVersionFromOldestTo12",
    "AuthorizerIntegrationTest.testEmptyTopicNameForProduceVersionFromOldestTo12",
    "AuthorizerIntegrationTest.testZeroTopicIdForProduceVersionFrom13ToNewest",
    "AuthorizerIntegrationTest.testAuthorizationFetchVersionFromOldestTo12",
    "AuthorizerIntegrationTest.testEmptyTopicNameForFetchVersionFromOldestTo12",
    "AuthorizerIntegrationTest.testZeroTopicIdForFetchVersionFrom13ToNewest",
)
@pytest.mark.parametrize("api", ["produce", "fetch"])
def test_topics_without_a_right_a_name_or_an_id_have_the_code_of_each_version(broker: KorvetServer, api: str) -> None:
    def code(version: int, name: str) -> set[str]:
        values = (produced(name=name) if api == "produce" else fetched(name=name)).values
        field = "topic_data" if api == "produce" else "topics"
        named = {key: value for key, value in values[field][0].items() if key not in ("name", "topic")}
        if version >= 13:
            values = {**values, field: [{**named, "topic_id": UUID(int=0)}]}
        return Request(api, version, **values).codes(broker)

    set_rules(broker)
    for version in supported(api):
        if version < 13:
            assert {*map(frozenset, (code(version, NAME), code(version, "")))} == {frozenset({T29})}, version
        else:
            assert code(version, "") == {"UNKNOWN_TOPIC_ID"}, version
