"""Each attack of attacks.txt has tests; here are those that need no server."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from korvet.configs.brokers import BROKER_CONFIGS
from korvet.configs.groups import GROUP_CONFIGS
from korvet.configs.oauth import OAUTH_URL
from korvet.configs.topics import TOPIC_CONFIGS
from korvet.configs.types import Kind
from tests.security.test_acl import allows, rule

TESTS = Path(__file__).resolve().parents[1]


def test_every_attack_of_the_list_has_tests_that_exist() -> None:
    _, *attacks = (TESTS / "security" / "attacks.txt").read_text().split("\n\n")
    assert len(attacks) >= 28
    for attack in attacks:
        named = re.findall(r"^    ([\w/]+\.py)::(\w+)$", attack, re.MULTILINE)
        assert named, attack
        for path, name in named:
            nodes = ast.parse((TESTS / path).read_text()).body
            assert name in {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


@pytest.mark.parametrize("name", ["f\u03bfo", "\uff46oo", "fo\u200bo", "FOO", "foo ", "foo\0"])
def test_names_that_look_alike_are_different_names(name: str) -> None:
    assert not allows([rule(name="foo")], name=name)
    assert not allows([rule(principal="User:foo")], principal=f"User:{name}")


def test_no_config_over_the_protocol_names_a_file_an_address_or_a_class() -> None:
    dangerous = re.compile(
        r"url|uri|path|file|location|director|dir(s|$)|class|endpoint|address|host|jaas|handler|provider"
    )
    configs = [config for table in (BROKER_CONFIGS, GROUP_CONFIGS, TOPIC_CONFIGS) for config in table.values()]
    texts = [config for config in configs if config.kind in (Kind.STRING, Kind.LIST)]
    changeable = [config.name for config in texts if not config.read_only]
    assert "compression.type" in changeable
    assert not [name for name in changeable if dangerous.search(name)]
    assert BROKER_CONFIGS[OAUTH_URL].read_only
