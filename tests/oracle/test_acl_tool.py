"""kafka-acls of Apache Kafka prints the same about korvet's rules as about Kafka's, also for a user without rights."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.api.raw import unique
from tests.kafka.process import Driver
from tests.oracle.rights import CLIENTS
from tests.oracle.script import PASSWORD
from tests.oracle.secured import ADMIN, PLAIN_LOGIN, Secured
from tests.oracle.tools import WITHIN_S, Tools
from tests.support.ported import kafka

ACLS = "org.apache.kafka.tools.AclCommand"
NOBODY = CLIENTS[0].user


@pytest.fixture(scope="module")
def tools(driver: Driver, secured_kafka: Secured, secured_korvet: Secured) -> Tools:
    return Tools(driver, secured_kafka.login, secured_korvet.login)


class Acls:
    """kafka-acls, run by a user on both brokers."""

    def __init__(self, tools: Tools, directory: Path, user: str) -> None:
        self._tools = tools
        self._config = directory / f"{user}.properties"
        self._config.write_text(
            "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\n"
            f'sasl.jaas.config={PLAIN_LOGIN} required username="{user}" password="{PASSWORD}";\n'
        )

    def same(self, *arguments: str, code: int = 0) -> list[str]:
        """Assert that a command ends alike on both brokers; returns its lines, which have no order.

        A list is repeated until both agree: Apache Kafka answers a change before it shows it.
        """
        deadline = time.monotonic() + WITHIN_S
        while True:
            kafka, korvet = (
                (ended, sorted(line.strip() for line in output.splitlines()))
                for ended, output in self._tools.both(ACLS, "--command-config", str(self._config), *arguments)
            )
            if korvet == kafka or "--list" not in arguments or time.monotonic() > deadline:
                break
            time.sleep(0.2)
        assert korvet == kafka
        assert korvet[0] == code, korvet[1]
        return korvet[1]

    def refusals(self, *arguments: str) -> list[str]:
        """Why each broker refuses a command; each has its own words for it."""
        found = []
        for code, output in self._tools.both(ACLS, "--command-config", str(self._config), *arguments):
            assert code == 1
            found.append(output.partition("Caused by: ")[2].partition(":")[0])
        return found


@pytest.fixture
def admin(tools: Tools, tmp_path: Path) -> Acls:
    return Acls(tools, tmp_path, ADMIN)


@pytest.fixture
def name() -> str:
    return unique("acl")


def listed(admin: Acls, name: str, *options: str) -> list[str]:
    """The rules of a topic, without those of other tests' users, and without the lines about resources."""
    lines = admin.same("--list", "--topic", name, *options)
    return [line for line in lines if line.startswith(("(principal=User:alice,", "(principal=User:bob,"))]


def entry(operation: str, permission: str = "ALLOW", principal: str = "User:alice", host: str = "*") -> str:
    return f"(principal={principal}, host={host}, operation={operation}, permissionType={permission})"


@kafka("AclCommandTest.testAclCliWithAdminAPI")
def test_added_rules_are_listed_by_resource_and_by_principal_and_removed(admin: Acls, name: str) -> None:
    read = ("--allow-principal", "User:alice", "--operation", "Read", "--topic", name)
    assert entry("READ") in admin.same("--add", *read)
    assert entry("READ") in admin.same("--add", *read)
    denied = ("--deny-principal", "User:bob", "--deny-host", "10.0.0.1", "--operation", "All", "--topic", name)
    admin.same("--add", *denied)
    both = [entry("READ"), entry("ALL", "DENY", "User:bob", "10.0.0.1")]
    assert listed(admin, name) == both
    assert listed(admin, name, "--principal", "User:bob") == both[1:]
    assert f"Current ACLs for resource `ResourcePattern(resourceType=TOPIC, name={name}, patternType=LITERAL)`:" in (
        admin.same("--list", "--topic", name)
    )
    admin.same("--remove", "--force", *denied)
    assert listed(admin, name) == both[:1]
    admin.same("--remove", "--force", "--topic", name)
    assert listed(admin, name) == []


@kafka("AclCommandTest.testAclsOnPrefixedResourcesWithAdminAPI")
def test_prefixed_rules_are_found_by_the_names_that_they_match(admin: Acls, name: str) -> None:
    prefixed = ("--topic", name[:-1], "--resource-pattern-type", "prefixed")
    admin.same("--add", "--allow-principal", "User:alice", "--operation", "Write", *prefixed)
    assert listed(admin, name) == []
    assert listed(admin, name, "--resource-pattern-type", "match") == [entry("WRITE")]
    assert listed(admin, name[:-1], "--resource-pattern-type", "any") == [entry("WRITE")]
    admin.same("--remove", "--force", *prefixed)
    assert listed(admin, name, "--resource-pattern-type", "match") == []


@kafka("AclCommandTest.testProducerConsumerCliWithAdminAPI")
def test_shortcuts_for_producers_and_consumers_add_the_rules_that_these_need(admin: Acls, name: str) -> None:
    alice = ("--allow-principal", "User:alice", "--topic", name)
    admin.same("--add", "--producer", "--transactional-id", name, "--idempotent", *alice)
    assert listed(admin, name) == [entry("CREATE"), entry("DESCRIBE"), entry("WRITE")]
    admin.same("--add", "--consumer", "--group", name, *alice)
    assert listed(admin, name) == [entry("CREATE"), entry("DESCRIBE"), entry("READ"), entry("WRITE")]
    for option in ("--group", "--transactional-id"):
        assert entry("READ" if option == "--group" else "WRITE") in admin.same("--list", option, name)
    assert entry("IDEMPOTENT_WRITE") in admin.same("--list", "--cluster", "--principal", "User:alice")
    admin.same("--remove", "--force", "--producer", "--transactional-id", name, "--idempotent", *alice)
    admin.same("--remove", "--force", "--consumer", "--group", name, *alice)
    assert listed(admin, name) == []


def test_mistakes_and_missing_rights_are_reported_alike(tools: Tools, admin: Acls, tmp_path: Path, name: str) -> None:
    read = ("--allow-principal", "User:alice", "--operation", "Read")
    admin.same("--add", "--allow-principal", "alice", "--operation", "Read", "--topic", name, code=1)
    admin.same("--add", *read, code=1)
    admin.same("--add", "--allow-principal", "User:alice", "--operation", "Create", "--group", name, code=1)
    nobody = Acls(tools, tmp_path, NOBODY)
    for command in (("--list",), ("--add", *read, "--topic", name), ("--remove", "--force", "--topic", name)):
        assert nobody.refusals(*command) == ["org.apache.kafka.common.errors.ClusterAuthorizationException"] * 2, (
            command
        )
