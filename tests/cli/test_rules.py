"""The rules and filters that the words of ``korvet acls`` mean."""

from __future__ import annotations

import pytest

from korvet.cli.security.rules import Words, filters_of, rules_of
from korvet.errors import ConfigError
from korvet.security.acl import Acl, AclFilter, Operation, PatternType, Permission, ResourceType

TOPIC, GROUP, CLUSTER, TRANSACTIONAL = (
    ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER, ResourceType.TRANSACTIONAL_ID,
)  # fmt: skip
ALICE = "User:alice"


def meant(words: Words) -> set[tuple[ResourceType, str, Operation, Permission, str, str]]:
    return {
        (one.resource_type, one.name, one.operation, one.permission, one.principal, one.host) for one in rules_of(words)
    }


def test_rule_is_for_all_operations_and_addresses_if_none_are_named() -> None:
    assert rules_of(Words(topics=["t"], allowed=[ALICE])) == [
        Acl(TOPIC, PatternType.LITERAL, "t", ALICE, "*", Operation.ALL, Permission.ALLOW)
    ]


def test_each_resource_has_a_rule_for_each_operation_principal_and_address() -> None:
    words = Words(
        topics=["t", "u"], groups=["g"], allowed=[ALICE, "User:bob"], denied=["User:eve"],
        allowed_hosts=["10.0.0.1", "::1"], operations=["Read", "describe"], pattern_type="prefixed",
    )  # fmt: skip
    found = rules_of(words)
    assert len(found) == len(set(found)) == 3 * 2 * (2 * 2 + 1)
    assert {one.pattern_type for one in found} == {PatternType.PREFIXED}
    assert {one.host for one in found if one.permission is Permission.DENY} == {"*"}


def test_producer_and_consumer_stand_for_kafkas_operations() -> None:
    producer = meant(Words(topics=["t"], transactional_ids=["x"], allowed=[ALICE], producer=True))
    assert {(kind, operation) for kind, _, operation, *_ in producer} == {
        (TOPIC, Operation.WRITE), (TOPIC, Operation.DESCRIBE), (TOPIC, Operation.CREATE),
        (TRANSACTIONAL, Operation.WRITE), (TRANSACTIONAL, Operation.DESCRIBE),
    }  # fmt: skip
    consumer = meant(Words(topics=["t"], groups=["g"], allowed=[ALICE], consumer=True))
    assert {(kind, operation) for kind, _, operation, *_ in consumer} == {
        (TOPIC, Operation.READ), (TOPIC, Operation.DESCRIBE), (GROUP, Operation.READ),
    }  # fmt: skip
    both = Words(topics=["t"], groups=["g"], allowed=[ALICE], producer=True, consumer=True)
    assert len(rules_of(both)) == 5


def test_cluster_has_only_its_own_name() -> None:
    words = Words(topics=["t"], cluster=True, allowed=[ALICE], operations=["Create"], pattern_type="prefixed")
    assert {(one.resource_type, one.pattern_type, one.name) for one in rules_of(words)} == {
        (TOPIC, PatternType.PREFIXED, "t"), (CLUSTER, PatternType.LITERAL, "kafka-cluster"),
    }  # fmt: skip


@pytest.mark.parametrize("word", ["DescribeConfigs", "describe-configs", "DESCRIBE_CONFIGS", "describeconfigs"])
def test_operations_have_several_spellings(word: str) -> None:
    (rule,) = rules_of(Words(topics=["t"], allowed=[ALICE], operations=[word]))
    assert rule.operation is Operation.DESCRIBE_CONFIGS


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (Words(allowed=[ALICE]), "name what the rules are for"),
        (Words(topics=["t"]), "name whom the rules are for"),
        (Words(topics=[""], allowed=[ALICE]), "may not be empty"),
        (Words(topics=["t"], allowed=["alice"]), "'alice' is no principal"),
        (Words(topics=["t"], allowed=[ALICE], allowed_hosts=["example.org"]), "rules name one address"),
        (Words(topics=["t"], allowed=[ALICE], allowed_hosts=["10.0.0.0/8"]), "rules name one address"),
        (Words(topics=["t"], allowed=[ALICE], denied_hosts=["10.0.0.1"]), "--deny-host goes with --deny-principal"),
        (Words(topics=["t"], allowed=[ALICE], operations=["Red"]), "'Red' is no operation"),
        (Words(topics=["t"], allowed=[ALICE], operations=["Any"]), "'Any' is no operation"),
        (Words(groups=["g"], allowed=[ALICE], operations=["Write"]), "Write is no operation of a group"),
        (Words(cluster=True, allowed=[ALICE], operations=["Read"]), "Read is no operation of a cluster"),
        (Words(transactional_ids=["x"], allowed=[ALICE], operations=["Read"]), "no operation of a transactional id"),
        (Words(groups=["g"], allowed=[ALICE], producer=True), "--producer goes with --topic"),
        (Words(topics=["t"], allowed=[ALICE], consumer=True), "--consumer goes with --topic and --group"),
        (Words(topics=["t"], allowed=[ALICE], producer=True, operations=["Read"]), "leave --operation"),
        (Words(topics=["t"], denied=[ALICE], producer=True), "leave --operation"),
    ],
)
def test_words_that_mean_no_rule_are_refused(words: Words, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        rules_of(words)


def test_filter_leaves_open_what_no_word_says() -> None:
    assert filters_of(Words()) == [AclFilter(1, 1, None, None, None, 1, 1)]
    assert filters_of(Words(topics=["t"], pattern_type="match"), [ALICE]) == [
        AclFilter(TOPIC, PatternType.MATCH, "t", ALICE, None, Operation.ANY, Permission.ANY)
    ]
    assert filters_of(Words(groups=["g"], denied=[ALICE], operations=["Read"])) == [
        AclFilter(GROUP, PatternType.LITERAL, "g", ALICE, None, Operation.READ, Permission.DENY)
    ]
    assert filters_of(Words(allowed=[ALICE], operations=["Read"])) == [
        AclFilter(1, 1, None, ALICE, None, Operation.READ, Permission.ALLOW)
    ]


def test_filters_of_a_role_match_the_rules_of_the_role_alone() -> None:
    words = Words(topics=["t"], allowed=[ALICE], producer=True)
    rules = [*rules_of(words), *rules_of(Words(topics=["t"], allowed=[ALICE], operations=["Read"]))]
    found = filters_of(words)
    assert [rule.operation for rule in rules if any(one.matches(rule) for one in found)] == [
        Operation.WRITE, Operation.DESCRIBE, Operation.CREATE,
    ]  # fmt: skip
