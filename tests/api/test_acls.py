"""DescribeAcls, CreateAcls and DeleteAcls, by raw requests and by a real client."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from tests.api.acls import TURNED_ON
from tests.api.raw import ask, unique
from tests.support.broker import KorvetServer, running_broker
from tests.support.ported import kafka

VALID = {
    "resource_type": 2, "resource_name": "t", "resource_pattern_type": 3, "principal": "User:alice", "host": "*",
    "operation": 3, "permission_type": 3,
}  # fmt: skip
TOO_MUCH = (
    "A rule is longer than 2048 bytes, or there would be more than 10000 rules, or the request has more than 4 MiB of "
    "them. None was added."
)
ANYTHING = {"resource_type_filter": 1, "pattern_type_filter": 1, "operation": 1, "permission_type": 1}


@pytest.fixture(scope="module")
def broker() -> Iterator[KorvetServer]:
    with running_broker(broker={**TURNED_ON, "super.users": "User:ANONYMOUS"}) as running:
        yield running


def create(broker: KorvetServer, *creations: dict[str, Any]) -> list[tuple[str, str | None]]:
    results = ask(broker.port, "create_acls", 3, creations=list(creations))["results"]
    return [(one["error_code"], one["error_message"]) for one in results]


def names(broker: KorvetServer, **conditions: Any) -> set[str]:
    answer = ask(broker.port, "describe_acls", 3, **{**ANYTHING, **conditions})
    assert answer["error_code"] == "NONE"
    return {resource["resource_name"] for resource in answer["resources"]}


@kafka(
    "AuthorizerTest.testAddAclsOnLiteralResource",
    "AuthorizerTest.testAclManagementAPIs",
    "AclControlManagerTest.testAddAndDelete",
    "AclControlManagerTest.testCreateAclDeleteAcl",
    "AclControlManagerTest.testCreateDedupe",
    "AclControlManagerTest.testDeleteDedupe",
)
def test_created_rules_are_described_and_deleted_by_filters(broker: KorvetServer) -> None:
    one, other = unique(), unique()
    assert create(broker, {**VALID, "resource_name": one}, {**VALID, "resource_name": one}) == [("NONE", None)] * 2
    assert create(broker, {**VALID, "resource_name": other, "resource_pattern_type": 4}) == [("NONE", None)]
    assert names(broker, resource_name_filter=one) == {one}
    assert names(broker, resource_name_filter=f"{other}-x", pattern_type_filter=2) >= {other}
    wanted = {**ANYTHING, "resource_name_filter": one}
    filters = [wanted, {**ANYTHING, "resource_name_filter": "none-such"}, {**wanted, "operation": 3}]
    first, second, third = ask(broker.port, "delete_acls", 3, filters=filters)["filter_results"]
    for found in (first, third):
        assert [acl["resource_name"] for acl in found["matching_acls"]] == [one]
    assert (second["error_code"], second["matching_acls"]) == ("NONE", [])
    assert one not in names(broker) and other in names(broker)


@pytest.mark.parametrize(
    "change, why",
    [
        ({"resource_name": ""}, "Invalid empty resource name"),
        ({"resource_type": 4}, "The only valid name for the CLUSTER resource is kafka-cluster"),
        ({"resource_type": 1}, "Invalid resourceType ANY"),
        ({"resource_pattern_type": 2}, "Invalid patternType MATCH"),
        ({"resource_pattern_type": 1}, "Invalid patternType ANY"),
        ({"operation": 1}, "Invalid operation ANY"),
        ({"permission_type": 1}, "Invalid permissionType ANY"),
        ({"principal": "alice"}, None),
        ({"principal": ""}, None),
    ],
)
@kafka(
    "AclControlManagerTest.testValidateNewAcl",
    "AclControlManagerTest.testValidateFilter",
    "AclControlManagerTest.testValidateAclWithBadPrincipal",
    "AclControlManagerTest.testValidateAclWithEmptyPrincipal",
    "AuthorizerTest.testEmptyAclThrowsException",
)
def test_an_invalid_rule_is_refused_beside_a_valid_one(
    broker: KorvetServer, change: dict[str, Any], why: str | None
) -> None:
    valid = unique()
    refused, done = create(broker, {**VALID, **change}, {**VALID, "resource_name": valid})
    assert refused[0] == "INVALID_REQUEST" and (why is None or refused[1] == why)
    assert done == ("NONE", None) and valid in names(broker)


@pytest.mark.parametrize("field", ["resource_type", "resource_pattern_type", "operation", "permission_type"])
@pytest.mark.parametrize("number", [0, 99, -1])
def test_a_number_that_nobody_knows_ends_the_connection(broker: KorvetServer, field: str, number: int) -> None:
    with pytest.raises(ConnectionError):
        ask(broker.port, "create_acls", 3, creations=[{**VALID, field: number}])
    assert "Traceback" not in broker.log


def test_a_rule_that_is_too_long_is_refused(broker: KorvetServer) -> None:
    long = {"resource_name": "n" * 1000, "principal": f"User:{'p' * 1000}", "host": "h" * 1000}
    assert create(broker, {**VALID, **long})[0][0] == "POLICY_VIOLATION"


def test_a_real_client_manages_rules(broker: KorvetServer) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    binding = AclBinding(
        ResourceType.TOPIC, unique(), ResourcePatternType.LITERAL, "User:bob", "10.0.0.1",
        AclOperation.WRITE, AclPermissionType.DENY,
    )  # fmt: skip
    (created,) = admin.create_acls([binding]).values()
    created.result(timeout=20)
    mine = AclBindingFilter(
        ResourceType.ANY, binding.name, ResourcePatternType.ANY, "User:bob", "10.0.0.1",
        AclOperation.ANY, AclPermissionType.ANY,
    )  # fmt: skip
    assert admin.describe_acls(mine).result(timeout=20) == [binding]
    (deleted,) = admin.delete_acls([mine]).values()
    assert deleted.result(timeout=20) == [binding]
    assert admin.describe_acls(mine).result(timeout=20) == []


def test_rules_outlive_a_restart_and_every_one_is_in_the_audit_log() -> None:
    with running_broker(broker={**TURNED_ON, "super.users": "User:ANONYMOUS"}) as running:
        name = unique()
        create(running, *({**VALID, "resource_name": f"{name}-{number}"} for number in range(300)))
        first, *more = changes(running)
        assert f"ALLOW READ on TOPIC:LITERAL:{name}-9 to User:alice from *" in first
        assert "count=300" in first and "outcome=done" in first and f"{name}-100 " not in first
        assert len(more) == 2 and f"{name}-299 " in more[-1]
        running.restart()
        assert names(running) == {f"{name}-{number}" for number in range(300)}
        ask(running.port, "delete_acls", 3, filters=[ANYTHING, ANYTHING])
        assert names(running) == set()
        ask(running.port, "delete_acls", 3, filters=[ANYTHING])
        assert len(changes(running)) == 6 and "count=300" in changes(running)[3]


def changes(broker: KorvetServer) -> list[str]:
    """The lines of the audit log about administrative requests."""
    return [line for line in broker.log.splitlines() if " changed " in line and "audit=True" in line]


def test_a_request_of_too_many_rules_adds_none(broker: KorvetServer) -> None:
    name = unique()
    many = [{**VALID, "resource_name": f"{name}-{number}"} for number in range(10_001)]
    assert set(create(broker, *many)) == {("POLICY_VIOLATION", TOO_MUCH)}
    assert not any(one.startswith(name) for one in names(broker))
    assert set(create(broker, *many[:9_000])) == {("NONE", None)}
    (too_many,) = {
        result["error_code"]
        for result in ask(broker.port, "delete_acls", 3, filters=[ANYTHING, ANYTHING])["filter_results"]
    }
    assert too_many == "POLICY_VIOLATION" and f"{name}-8999" in names(broker)
    exact = [{**ANYTHING, "resource_name_filter": f"{name}-{number}"} for number in range(9_000)]
    results = ask(broker.port, "delete_acls", 3, filters=exact)["filter_results"]
    assert {len(result["matching_acls"]) for result in results} == {1}
    assert not any(one.startswith(name) for one in names(broker))
