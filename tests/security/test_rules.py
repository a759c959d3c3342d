"""Kafka's cases of the judgement of several rules together, as StandardAuthorizer's tests have them."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from korvet.security.acl import Acl, AclFilter, Operation, PatternType, ResourceType
from korvet.security.authorizer import parse_super_users
from korvet.security.rules import Client, Rules
from korvet.security.stored_rules import decoded, encoded
from tests.security.test_acl import DENY, GROUP, LITERAL, PREFIXED, TOPIC, allows, rule
from tests.support.ported import kafka

READ, WRITE, DESCRIBE, ALL = Operation.READ, Operation.WRITE, Operation.DESCRIBE, Operation.ALL
ANYONE, ALICE, BOB, MALORY = "User:*", "User:alice", "User:bob", "User:malory"
Asked = tuple[str, Operation, str, bool]
"""A principal, an operation, a topic, and whether the operation is allowed."""


def check(rules: list[Acl], *asked: Asked) -> None:
    for principal, operation, name, expected in asked:
        assert allows(rules, operation, name, principal=principal) == expected, (principal, operation, name)


@kafka("StandardAuthorizerTest.testDenyPrecedenceWithOperationAll")
def test_a_denial_of_everything_wins_over_a_permission_by_prefix() -> None:
    check(
        [
            rule(ALL, DENY),
            rule(READ, pattern=PREFIXED),
            rule(ALL, DENY, principal=ANYONE),
            rule(DESCRIBE, pattern=PREFIXED, principal=ANYONE),
        ],
        (ALICE, WRITE, "foo", False), (ALICE, READ, "foo", False), (ALICE, DESCRIBE, "foo", False),
        (ALICE, READ, "foobar", True), (BOB, DESCRIBE, "foo", False), (BOB, READ, "foo", False),
        (BOB, WRITE, "foo", False), (BOB, DESCRIBE, "foobaz", True), (BOB, READ, "foobaz", False),
    )  # fmt: skip


@kafka("StandardAuthorizerTest.testTopicAclWithOperationAll")
def test_a_permission_of_everything_allows_each_operation_to_its_principals() -> None:
    check(
        [
            rule(ALL, principal=ANYONE),
            rule(ALL, name="bar", pattern=PREFIXED),
            rule(ALL, name="baz", principal=BOB),
        ],
        (ALICE, WRITE, "foo", True), (ALICE, Operation.DESCRIBE_CONFIGS, "bar", True), (ALICE, DESCRIBE, "baz", False),
        (BOB, WRITE, "foo", True), (BOB, READ, "bar", False), (BOB, DESCRIBE, "baz", True),
        (MALORY, DESCRIBE, "foo", True), (MALORY, WRITE, "bar", False), (MALORY, READ, "baz", False),
    )  # fmt: skip


@kafka("StandardAuthorizerTest.testPrefixAcls")
def test_prefixes_of_several_principals_do_not_mix() -> None:
    check(
        [
            rule(ALL, name="fooa", pattern=PREFIXED),
            rule(ALL, name="foobar", principal=BOB),
            rule(ALL, name="f", pattern=PREFIXED, principal=BOB),
        ],
        (BOB, WRITE, "foobarr", True), (BOB, READ, "goobar", False), (BOB, READ, "fooa", True),
        (ALICE, DESCRIBE, "fooa", True), (ALICE, WRITE, "bar", False), (ALICE, READ, "baz", False),
    )  # fmt: skip


MANY = [
    rule(READ, name="green2", principal=ANYONE),
    rule(READ, name="green", pattern=PREFIXED, principal=BOB),
    rule(READ, name="betamax4", principal=BOB),
    rule(READ, name="betamax", principal=BOB),
    rule(READ, name="beta", pattern=PREFIXED, principal=ANYONE),
    rule(READ, name="alpha", pattern=PREFIXED, principal=ANYONE),
    rule(READ, DENY, name="alp", pattern=PREFIXED, principal=BOB),
    rule(WRITE, name="*", principal=BOB, kind=GROUP),
    rule(WRITE, DENY, name="wheel", principal=ANYONE, kind=GROUP),
]


@kafka("StandardAuthorizerTest.testAuthorizationWithManyAcls", "StandardAuthorizerTest.testSimpleAuthorizations")
def test_among_many_rules_those_of_the_name_decide() -> None:
    check(MANY, (BOB, READ, "green1", True), (BOB, READ, "alpha", False), (BOB, READ, "ala", False))
    assert not allows(MANY, WRITE, "wheel", principal=BOB, kind=GROUP)
    assert allows(MANY, WRITE, "arbitrary", principal=BOB, kind=GROUP)


@kafka("StandardAuthorizerTest.testDenyAuditLogging")
def test_the_rule_that_denies_is_found_for_the_audit_log() -> None:
    rules, client = Rules(MANY), Client.of(BOB, "127.0.0.1")
    assert rules.denying(client, READ, TOPIC, "alpha") == MANY[6]
    assert rules.denying(client, READ, TOPIC, "green1") is None
    assert rules.denying(client, READ, TOPIC, "nothing") is None


@kafka("StandardAuthorizerTest.testHostAddressAclValidation")
def test_rules_for_hosts_count_beside_rules_for_all_hosts() -> None:
    one, two, here = "192.168.1.1", "192.168.1.2", "127.0.0.1"
    rules = [
        rule(READ, DENY, host=one),
        rule(READ),
        rule(READ, name="bar", principal=BOB, host=two),
        rule(DESCRIBE, name="bar", principal=ANYONE, host=here),
    ]
    asked = ((READ, "foo"), (READ, "bar"), (DESCRIBE, "bar"))
    for principal, host, expected in (
        (ALICE, here, (True, False, True)),
        (ALICE, one, (False, False, False)),
        (ALICE, two, (True, False, False)),
        (BOB, here, (False, False, True)),
        (BOB, one, (False, False, False)),
        (BOB, two, (False, True, True)),
    ):
        found = tuple(allows(rules, operation, name, principal=principal, host=host) for operation, name in asked)
        assert found == expected, (principal, host)


@kafka("StandardAuthorizerTest.testFindResultImplication")
@pytest.mark.parametrize(
    ("asked", "granted", "expected"),
    [
        *((DESCRIBE, one, True) for one in (DESCRIBE, READ, WRITE, Operation.DELETE, Operation.ALTER)),
        (DESCRIBE, Operation.CREATE, False),
        (Operation.DESCRIBE_CONFIGS, Operation.DESCRIBE_CONFIGS, True),
        (Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS, True),
        (Operation.DESCRIBE_CONFIGS, READ, False),
    ],
)
def test_permissions_imply_and_denials_do_not(asked: Operation, granted: Operation, expected: bool) -> None:
    mine = rule(granted, name="foo_", pattern=PREFIXED, principal=BOB)
    denied = rule(granted, DENY, name="foo_", pattern=PREFIXED, principal=BOB)
    everything = rule(ALL, name="foo_", pattern=PREFIXED, principal=BOB)
    assert allows([mine], asked, "foo_bar", principal=BOB) == expected
    assert allows([denied, everything], asked, "foo_bar", principal=BOB) == (granted is not asked)


@kafka("StandardAuthorizerTest.testFindResultPrincipalMatching", "AuthorizerTest.testAllowAccessWithCustomPrincipal")
def test_a_rule_concerns_its_principal_alone_or_everyone() -> None:
    mine = rule(READ, name="foo_", pattern=PREFIXED, principal=BOB)
    check([mine], (BOB, READ, "foo_bar", True), (ALICE, READ, "foo_bar", False), ("Group:bob", READ, "foo_bar", False))
    denied = rule(READ, DENY, principal=ANYONE)
    check([rule(READ), denied], (ALICE, READ, "foo", False), (BOB, READ, "foo", False))


@kafka(
    "StandardAuthorizerTest.testAllowEveryoneIfNoAclFoundConfigEnabled",
    "StandardAuthorizerTest.testAllowEveryoneIfNoAclFoundConfigDisabled",
)
@pytest.mark.parametrize("is_open", [True, False])
def test_only_a_resource_without_a_rule_of_anybody_may_be_open(is_open: bool) -> None:
    rules = [rule(READ, name="topic1")]
    assert not allows(rules, READ, "topic1", principal=BOB, is_open=is_open)
    assert allows(rules, READ, "topic2", principal=BOB, is_open=is_open) == is_open


@kafka(
    "StandardAuthorizerTest.testConfigure",
    "StandardAuthorizerTest.testGetConfiguredSuperUsers",
    "AuthorizerTest.testSuperUserWithCustomPrincipalHasAccess",
    "AuthorizerTest.testAclConfigWithWhitespace",
)
def test_super_users_are_principals_between_semicolons() -> None:
    assert parse_super_users(" User:alice; Group:ops ;;User:CN=a,O=b") == {"User:alice", "Group:ops", "User:CN=a,O=b"}
    for wrong in ("alice", "User:", ":alice"):
        with pytest.raises(ValueError):
            parse_super_users(wrong)


@kafka(
    "AuthorizerTest.testAccessAllowedIfAllowAclExistsOnWildcardResource",
    "AuthorizerTest.testAccessAllowedIfAllowAclExistsOnPrefixedResource",
)
@pytest.mark.parametrize(("pattern", "name"), [(LITERAL, "*"), (PREFIXED, "foo-")])
def test_a_rule_for_more_names_than_one_allows_each(pattern: PatternType, name: str) -> None:
    check([rule(READ, name=name, pattern=pattern)], (ALICE, READ, "foo-1", True), (ALICE, WRITE, "foo-1", False))


@kafka("AuthorizerTest.testAuthorizeByResourceTypeNoAclFoundOverride")
def test_without_rules_an_open_cluster_allows_everything_on_every_name() -> None:
    assert all(allows([], one, "hardcode", is_open=True) for one in Operation if one > Operation.ANY)
    assert not any(allows([], one, "hardcode") for one in Operation if one > Operation.ANY)


@kafka("AuthorizerTest.testGetAclsPrincipal", "StandardAuthorizerTest.testListAcls")
def test_a_filter_by_principal_takes_the_wildcard_as_a_name() -> None:
    rules = [rule(WRITE, principal=ANYONE), rule(WRITE)]

    def found(principal: str) -> Sequence[Acl]:
        asked = AclFilter(ResourceType.ANY, PatternType.ANY, None, principal, None, Operation.ANY, 1)
        return [acl for acl in rules if asked.matches(acl)]

    assert (found(ANYONE), found(ALICE), found(BOB)) == (rules[:1], rules[1:], [])


def test_names_that_look_alike_and_names_with_a_prefix_as_text_are_other_names() -> None:
    cyrillic = "fo\N{CYRILLIC SMALL LETTER O}"
    check(
        [rule(READ), rule(READ, name="*", pattern=PREFIXED), rule(READ, name="caf\N{LATIN SMALL LETTER E WITH ACUTE}")],
        (ALICE, READ, cyrillic, False), (ALICE, READ, "Foo", False), (ALICE, READ, "foo ", False),
        (ALICE, READ, "cafe\N{COMBINING ACUTE ACCENT}", False), (ALICE, READ, "any", False), (ALICE, READ, "*x", True),
    )  # fmt: skip


@pytest.mark.parametrize("host", ["::ffff:1.2.3.4", "::FFFF:102:304", "1.2.3.4"])
def test_a_denial_for_a_host_counts_for_its_address_mapped_into_the_other_family(host: str) -> None:
    for written in ("1.2.3.4", "::ffff:1.2.3.4", "0:0:0:0:0:ffff:102:304"):
        assert not allows([rule(READ), rule(READ, DENY, host=written)], host=host)
    assert allows([rule(READ), rule(READ, DENY, host="1.2.3.5")], host=host)


@kafka("AclEntryTest.testAclJsonConversion")
@pytest.mark.parametrize("name", ["alice", "\\bob", "bob1\\bob2", 'CN="a, b"', "*", "ü\u2028", "a\nb"])
def test_a_rule_is_the_same_after_redis(name: str) -> None:
    stored = rule(READ, DENY, name=name, principal=f"User:{name}", host="host1")
    assert decoded(encoded(stored)) == stored
