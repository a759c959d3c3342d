"""The judgement of access rules: Kafka's cases, and a comparison with a model that is too simple to be wrong."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from korvet.security.acl import Acl, AclFilter, Operation, PatternType, Permission, ResourceType
from korvet.security.rules import Client, Prefixes, Rules
from tests.support.ported import kafka

TOPIC, GROUP = ResourceType.TOPIC, ResourceType.GROUP
LITERAL, PREFIXED = PatternType.LITERAL, PatternType.PREFIXED
ALLOW, DENY = Permission.ALLOW, Permission.DENY
ALICE, HOST = "User:alice", "10.0.0.1"


def rule(
    operation: Operation = Operation.READ,
    permission: Permission = ALLOW,
    *,
    name: str = "foo",
    pattern: PatternType = LITERAL,
    principal: str = ALICE,
    host: str = "*",
    kind: ResourceType = TOPIC,
) -> Acl:
    return Acl(kind, pattern, name, principal, host, operation, permission)


def allows(
    rules: list[Acl],
    operation: Operation = Operation.READ,
    name: str = "foo",
    *,
    principal: str = ALICE,
    host: str = HOST,
    kind: ResourceType = TOPIC,
    is_open: bool = False,
) -> bool:
    """Whether an action is allowed; a denial is the reason if, and only if, one is found."""
    judged, client = Rules(rules), Client.of(principal, host)
    is_allowed = bool(judged.allowed(client, kind, name, is_open=is_open) & 1 << operation)
    denying = judged.denying(client, operation, kind, name)
    assert denying is None or (not is_allowed and denying in rules and denying.permission is DENY)
    return is_allowed


@kafka("AuthorizerTest.testDenyTakesPrecedence")
def test_a_denial_wins_over_every_permission() -> None:
    assert not allows([rule(), rule(Operation.ALL, principal="User:*"), rule(permission=DENY)])
    assert not allows([rule(name="*"), rule(permission=DENY, name="f", pattern=PREFIXED)])


@kafka("AuthorizerTest.testAllowAllAccess")
def test_a_rule_for_everyone_and_everything_allows_everyone_everything() -> None:
    everything = [rule(Operation.ALL, principal="User:*", name="*")]
    assert allows(everything, Operation.ALTER, "anything", principal="User:random", host="192.0.4.4")


@kafka("AuthorizerTest.testNoAclFound")
def test_without_a_rule_nothing_is_allowed() -> None:
    assert not allows([])
    assert not allows([rule(name="bar")])


@kafka("AuthorizerTest.testNoAclFoundOverride")
def test_a_resource_without_rules_is_open_if_the_setting_says_so() -> None:
    rules = [rule(name="bar"), rule(name="pre", pattern=PREFIXED), rule(name="g", kind=GROUP)]
    for name, is_allowed in (("foo", True), ("bar", False), ("prefix", False), ("g", True)):
        assert allows(rules, name=name, principal="User:bob", is_open=True) == is_allowed, name


@pytest.mark.parametrize(
    "granted, implied",
    [
        (Operation.READ, {Operation.READ, Operation.DESCRIBE}),
        (Operation.WRITE, {Operation.WRITE, Operation.DESCRIBE}),
        (Operation.DELETE, {Operation.DELETE, Operation.DESCRIBE}),
        (Operation.ALTER, {Operation.ALTER, Operation.DESCRIBE}),
        (Operation.DESCRIBE, {Operation.DESCRIBE}),
        (Operation.ALTER_CONFIGS, {Operation.ALTER_CONFIGS, Operation.DESCRIBE_CONFIGS}),
        (Operation.CREATE, {Operation.CREATE}),
        (Operation.ALL, set(Operation) - {Operation.UNKNOWN, Operation.ANY}),
    ],
)
@kafka("AuthorizerTest.testAclInheritance")
def test_an_operation_allows_those_that_it_implies_and_denies_only_itself(
    granted: Operation, implied: set[Operation]
) -> None:
    asked = [operation for operation in Operation if operation > Operation.ANY]
    assert {one for one in asked if allows([rule(granted)], one)} == implied
    denied = {one for one in asked if not allows([rule(Operation.ALL), rule(granted, DENY)], one)}
    assert denied == (implied if granted is Operation.ALL else {granted})


@kafka("AuthorizerTest.testTopicAcl")
def test_a_rule_for_a_host_counts_for_that_address_in_any_spelling() -> None:
    assert allows([rule(host=HOST)])
    assert not allows([rule(host="10.0.0.2")])
    assert allows([rule(host="0:0:0:0:0:0:0:1")], host="::1")
    assert allows([rule(host="1.2.3.4")], host="::ffff:1.2.3.4")
    assert allows([rule(host="::ffff:1.2.3.4")], host="1.2.3.4")
    assert not allows([rule(host="10.0.0.0/8")])


@kafka(
    "AuthorizerTest.testAuthorizeWithPrefixedResource",
    "AuthorizerTest.testSingleCharacterResourceAcls",
    "AuthorizerTest.testAuthorizeWithEmptyResourceName",
)
def test_a_prefix_matches_names_that_begin_with_it_and_no_others() -> None:
    assert allows([rule(name="fo", pattern=PREFIXED)])
    assert allows([rule(name="foo", pattern=PREFIXED)])
    assert not allows([rule(name="fooo", pattern=PREFIXED)])
    assert not allows([rule(name="oo", pattern=PREFIXED)])
    assert not allows([rule(name="*", pattern=PREFIXED)])
    assert not allows([rule(name="f")])


@kafka("AuthorizerTest.testWildCardAcls")
def test_the_wildcard_is_a_literal_name_for_all_resources_of_a_type() -> None:
    assert allows([rule(name="*")])
    assert not allows([rule(name="*")], kind=GROUP)


@kafka(
    "BaseAuthorizerTest.testAuthorizeByResourceTypeDenyTakesPrecedence",
    "BaseAuthorizerTest.testAuthorizeByResourceTypeMultipleAddAndRemove",
    "BaseAuthorizerTest.testAuthorizeByResourceTypeIsolationUnrelatedDenyWontDominateAllow",
    "BaseAuthorizerTest.testAuthorizeByResourceTypePrefixedResourceDenyDominate",
    "BaseAuthorizerTest.testAuthorizeByResourceTypeWildcardResourceDenyDominate",
    "BaseAuthorizerTest.testAuthorizeByResourceTypeWithAllOperationAce",
    "BaseAuthorizerTest.testAuthorizeByResourceTypeWithAllHostAce",
    "BaseAuthorizerTest.testAuthorizeByResourceTypeWithAllPrincipalAce",
)
def test_some_resource_may_be_written_unless_denials_cover_all_that_is_allowed() -> None:
    def writes(*rules: Acl) -> bool:
        return Rules(rules).allows_some(Client.of(ALICE, HOST), Operation.WRITE, TOPIC)

    allowed, denied = rule(Operation.WRITE), rule(Operation.WRITE, DENY)
    assert writes(allowed)
    assert writes(allowed._replace(operation=Operation.ALL, principal="User:*"))
    assert not writes(allowed, denied)
    assert not writes(allowed, denied._replace(name="*"))
    assert not writes(allowed, denied._replace(name="f", pattern_type=PREFIXED))
    assert writes(allowed, denied._replace(name="fooo", pattern_type=PREFIXED))
    assert writes(allowed._replace(name="*"), denied._replace(name="f", pattern_type=PREFIXED))
    assert not writes(allowed._replace(name="*"), denied._replace(name="*"))
    assert not writes(allowed._replace(pattern_type=PREFIXED), denied._replace(name="f", pattern_type=PREFIXED))
    assert writes(allowed._replace(pattern_type=PREFIXED), denied)
    assert not writes(allowed._replace(host="10.0.0.9"))
    for _ in range(3):
        assert not writes() and writes(allowed) and not writes(denied)
    unrelated = [
        denied._replace(name="foo-2"),
        denied._replace(principal="User:bob"),
        denied._replace(operation=Operation.READ),
        denied._replace(name="f", pattern_type=PREFIXED, resource_type=GROUP),
        denied._replace(host="10.0.0.9"),
    ]
    assert writes(allowed, *unrelated)


@kafka("AuthorizerTest.testAclsFilter")
def test_a_filter_finds_the_rules_that_meet_all_its_conditions() -> None:
    acls = [
        rule(),
        rule(name="*"),
        rule(name="fo", pattern=PREFIXED),
        rule(name="bar"),
        rule(Operation.WRITE, DENY, principal="User:bob"),
    ]

    def found(**conditions: Any) -> list[Acl]:
        asked = AclFilter(1, PatternType.ANY, None, None, None, 1, 1)._replace(**conditions)
        return [acl for acl in acls if asked.matches(acl)]

    assert found() == acls
    assert found(name="foo") == [acls[0], acls[4]]
    assert found(name="foo", pattern_type=PatternType.MATCH) == [acls[0], acls[1], acls[2], acls[4]]
    assert found(name="fo", pattern_type=PREFIXED) == [acls[2]]
    assert found(pattern_type=LITERAL) == [acls[0], acls[1], acls[3], acls[4]]
    assert found(principal="User:bob") == found(operation=Operation.WRITE) == found(permission=DENY) == [acls[4]]
    assert found(host="10.0.0.1") == found(resource_type=GROUP) == []


NAMES = st.sampled_from(["*", "a", "ab", "abc", "b"])
ACLS = st.builds(
    Acl,
    st.sampled_from([TOPIC, GROUP]),
    st.sampled_from([LITERAL, PREFIXED]),
    NAMES,
    st.sampled_from(["User:a", "User:b", "User:*"]),
    st.sampled_from(["*", "10.0.0.1", "::1"]),
    st.sampled_from([operation for operation in Operation if operation > 1]),
    st.sampled_from([ALLOW, DENY]),
)


def model(
    acls: list[Acl], principal: str, host: str, operation: Operation, kind: ResourceType, name: str, is_open: bool
) -> bool:
    """The judgement by brute force, as the documentation tells it."""
    here = [
        acl
        for acl in acls
        if acl.resource_type == kind
        and (acl.name in (name, "*") if acl.pattern_type == LITERAL else name.startswith(acl.name))
    ]
    mine = [acl for acl in here if acl.principal in (principal, "User:*") and acl.host in (host, "*")]
    implying = {
        Operation.DESCRIBE: [Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER],
        Operation.DESCRIBE_CONFIGS: [Operation.ALTER_CONFIGS],
    }.get(operation, [])
    if any(acl.permission == DENY and acl.operation in (operation, Operation.ALL) for acl in mine):
        return False
    if any(acl.permission == ALLOW and acl.operation in (operation, Operation.ALL, *implying) for acl in mine):
        return True
    return is_open and not here


@given(
    st.lists(ACLS, max_size=12),
    st.sampled_from(["User:a", "User:b"]),
    st.sampled_from(["10.0.0.1", "::1", "10.0.0.2"]),
    st.sampled_from([operation for operation in Operation if operation > 2]),
    st.sampled_from([TOPIC, GROUP]),
    NAMES,
    st.booleans(),
)
def test_judgements_are_those_of_the_model(
    acls: list[Acl], principal: str, host: str, operation: Operation, kind: ResourceType, name: str, is_open: bool
) -> None:
    judged = allows(acls, operation, name, principal=principal, host=host, kind=kind, is_open=is_open)
    assert judged == model(acls, principal, host, operation, kind, name, is_open)


WORDS = st.text("ab", min_size=1, max_size=5)


@given(st.lists(WORDS), WORDS)
def test_the_prefixes_of_a_name_are_all_with_which_it_begins(prefixes: list[str], name: str) -> None:
    found = list(Prefixes(prefixes).of(name))
    assert found == sorted({prefix for prefix in prefixes if name.startswith(prefix)}, key=len, reverse=True)
    assert Prefixes(prefixes).nesting >= len(found)


@given(st.lists(ACLS, max_size=8), st.sampled_from(["User:a", "User:b"]), st.sampled_from(["10.0.0.1", "::1"]))
def test_some_resource_is_allowed_if_there_is_a_name_that_is(acls: list[Acl], principal: str, host: str) -> None:
    """The names that decide are those of literal rules, and names under each prefix that no other rule knows."""
    literals = {acl.name for acl in acls if acl.pattern_type == LITERAL and acl.name != "*"}
    names = {"~", *literals, *(f"{acl.name}~" for acl in acls if acl.pattern_type == PREFIXED)}
    is_some = any(model(acls, principal, host, Operation.WRITE, TOPIC, name, False) for name in names)
    assert Rules(acls).allows_some(Client.of(principal, host), Operation.WRITE, TOPIC) == is_some


@given(st.lists(ACLS, max_size=8), st.sampled_from(["User:a", "User:b"]), st.sampled_from(["10.0.0.1", "::1"]))
def test_some_resource_is_denied_if_a_rule_denies_one(acls: list[Acl], principal: str, host: str) -> None:
    denied = [
        acl
        for acl in acls
        if (acl.resource_type, acl.permission) == (TOPIC, DENY)
        and acl.operation in (Operation.DESCRIBE, Operation.ALL)
        and acl.principal in (principal, "User:*")
        and acl.host in (host, "*")
    ]
    assert Rules(acls).denies_some(Client.of(principal, host), Operation.DESCRIBE, TOPIC) == bool(denied)
