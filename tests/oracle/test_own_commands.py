"""Korvet's own commands log in at Apache Kafka as at korvet, and show the same of its rules, users and quotas."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from korvet.cli import run
from tests.api.raw import unique
from tests.kafka.waiting import poll_until
from tests.oracle.rights import CLIENTS
from tests.oracle.script import PASSWORD
from tests.oracle.secured import ADMIN, PLAIN_LOGIN, Secured

NOBODY = CLIENTS[0].user
Ended = tuple[int, str, str]
Korvet = Callable[..., Ended]


@pytest.fixture(params=["secured_korvet", "secured_kafka"])
def broker(request: pytest.FixtureRequest) -> Secured:
    found: Secured = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def korvet(broker: Secured, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Korvet:
    """Run a command as a user who logs in by PLAIN: exit code, stdout and stderr."""

    def korvet(*arguments: str, user: str = ADMIN, password: str = PASSWORD) -> Ended:
        file = tmp_path / "client.properties"
        file.write_text(
            f"bootstrap.servers={broker.login}\nsecurity.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\n"
            f'sasl.jaas.config={PLAIN_LOGIN} required username="{user}" password="{password}";\n'
        )
        capsys.readouterr()
        code = run([*arguments, "--command-config", str(file)])
        shown = capsys.readouterr()
        return code, shown.out, shown.err

    return korvet


def rules(korvet: Korvet, *flags: str) -> list[tuple[Any, ...]]:
    code, out, err = korvet("acls", "list", "--json", *flags)
    assert code == 0, err
    return [
        tuple(one[field] for field in ("principal", "operation", "pattern_type", "name")) for one in json.loads(out)
    ]


def test_rules_are_added_listed_and_removed(korvet: Korvet) -> None:
    topic, user = unique("own"), "User:alice"
    roles = ["--allow-principal", user, "--producer", "--consumer", "--topic", topic, "--group", topic]
    assert korvet("acls", "add", *roles, "--resource-pattern-type", "prefixed")[0] == 0
    wanted = [(user, operation, "PREFIXED", topic) for operation in ("READ", "WRITE", "CREATE", "DESCRIBE")]
    matching = ["--topic", f"{topic}-more", "--resource-pattern-type", "match", "--principal", user]
    poll_until(lambda: rules(korvet, *matching) == wanted, "rules by the name of a topic")
    which = ["--topic", topic, "--resource-pattern-type", "any", "--operation", "Write", "--operation", "Create"]
    code, out, err = korvet("acls", "remove", *which)
    assert (code, err) == (1, "nothing was changed; add --execute to do it\n")
    assert korvet("acls", "remove", *which, "--execute") == (0, out, "")
    poll_until(lambda: len(rules(korvet, *matching)) == 2, "rules that are left")


def test_users_are_added_listed_and_removed(korvet: Korvet, tmp_path: Path) -> None:
    name, password = unique("own"), tmp_path / "password"
    password.write_text("secret")
    told = (0, f"user {name} may log in by SCRAM-SHA-512\n", "")
    assert korvet("users", "add", name, "--iterations", "8192", "--password-file", str(password)) == told

    def known() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(korvet("users", "list", "--json")[1])
        return [one for one in found if one["user"] == name]

    poll_until(lambda: known() == [{"user": name, "mechanism": "SCRAM-SHA-512", "iterations": 8192}], "the new user")
    code, out, err = korvet("users", "remove", name)
    assert (code, out.splitlines()[1].split()) == (1, [name, "SCRAM-SHA-512", "8192"])
    assert err == "nothing was changed; add --execute to do it\n"
    assert known()
    assert korvet("users", "remove", "--execute", name) == (0, f"user {name} is removed\n", "")
    poll_until(lambda: not known(), "the end of the user")
    assert korvet("users", "remove", "--execute", name)[0] == 1


def test_quotas_are_set_listed_and_removed(korvet: Korvet) -> None:
    client = unique("own")
    assert korvet("quotas", "set", "--user-defaults", "--client", client, "controller_mutation_rate=1.5")[0] == 0

    def known() -> Any:
        return json.loads(korvet("quotas", "list", "--client", client, "--json")[1])

    quotas = {"controller_mutation_rate": 1.5}
    wanted = [{"entity": {"user": None, "client-id": client}, "quotas": quotas}]
    poll_until(lambda: known() == wanted, "the new quota")
    code, out, _ = korvet("quotas", "remove", "--dry-run", "--user-defaults", "--client", client)
    assert (code, "controller_mutation_rate" in out, known()) == (0, True, wanted)
    assert korvet("quotas", "remove", "--execute", "--user-defaults", "--client", client)[0] == 0
    poll_until(lambda: known() == [], "the end of the quota")


@pytest.mark.parametrize(
    "command",
    [
        ["acls", "list"],
        ["acls", "add", "--allow-principal", "User:a", "--topic", "t"],
        ["users", "list"],
        ["quotas", "list"],
        ["quotas", "set", "--user", "a", "producer_byte_rate=1"],
    ],
)
def test_client_without_rights_is_refused_in_words(korvet: Korvet, command: list[str]) -> None:
    code, out, err = korvet(*command, user=NOBODY)
    assert (code, out) == (1, "")
    assert "CLUSTER_AUTHORIZATION_FAILED" in err and "korvet acls add" in err


def test_wrong_password_is_refused_in_words(korvet: Korvet, broker: Secured) -> None:
    assert korvet("topics", "list", password="wrong") == (
        1,
        "",
        f"korvet: {broker.login} refused the login of user '{ADMIN}' by PLAIN; check the name and the password, and "
        "whether this user has one for PLAIN\n",
    )
