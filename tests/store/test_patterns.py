"""Regular expressions of clients: one place compiles them, in bounded time and memory."""

from __future__ import annotations

import ast
from pathlib import Path
from uuid import uuid4

import pytest

import korvet
from korvet import patterns
from korvet.configs.client_metrics import subscription
from korvet.configs.value_schema import ValueSchema
from korvet.errors import ConfigError
from korvet.patterns import capturing, compiled
from korvet.security.mapping import PrincipalRules
from korvet.store.groups.subscriptions import regex_problem

TOO_LARGE = "pattern too large - compile failed"
HOSTILE = r"[\pL\pN\pS]{300}"
"""RE2's own bounds let it take half a second and 100 KB."""


def test_compiled_expressions_of_a_process_are_bounded() -> None:
    for _ in range(1000):
        compiled(f"{uuid4()}.*")
    known = patterns._compiled_or_why.cache_info()
    assert known.currsize == known.maxsize == 256


@pytest.mark.parametrize("regex", ["orders.*", "^a|b$", "(?i)A", "[[:alpha:]]+", "x{1000}", r"(?:\d{4}|)" * 1000])
def test_expression_of_re2_is_compiled(regex: str) -> None:
    compiled(regex)


@pytest.mark.parametrize("regex", [r"\pL" * 51, r"\PL" * 51, "x{3}" * 1001, "x?" * 1001, "x" * 10_001])
def test_expression_that_takes_long_is_refused_before_it_is_compiled(
    regex: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RE2 takes seconds for 32 KB of some of these patterns, and nothing else runs meanwhile."""
    monkeypatch.setattr("korvet.patterns.re2.compile", pytest.fail)
    with pytest.raises(ValueError, match=TOO_LARGE):
        compiled(regex)


def test_expression_is_refused_again_without_being_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=TOO_LARGE):
        compiled(HOSTILE)
    monkeypatch.setattr("korvet.patterns.re2.compile", pytest.fail)
    with pytest.raises(ValueError, match=TOO_LARGE):
        compiled(HOSTILE)


def test_every_expression_of_others_has_the_same_bound() -> None:
    assert (regex_problem(HOSTILE) or "").endswith(f": {TOO_LARGE}.")
    with pytest.raises(ValueError, match="Illegal client matching pattern"):
        subscription({"match": f"client_id={HOSTILE}"})
    with pytest.raises(ValueError, match=TOO_LARGE):
        ValueSchema(f'{{"pattern": "{HOSTILE}"}}'.replace("\\", "\\\\"))
    with pytest.raises(ConfigError, match=TOO_LARGE):
        PrincipalRules(f"RULE:{HOSTILE}/x/")


def test_one_module_alone_compiles_expressions_of_clients() -> None:
    # The pipeline serves no clients, and compiles a pattern of its own.
    root = Path(korvet.__file__).parent
    imports = {
        str(path.relative_to(root))
        for path in root.rglob("*.py")
        if "pipeline" not in path.parts
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Import) and any(alias.name == "re2" for alias in node.names)
    }
    assert imports == {"patterns.py"}


def test_groups_are_captured_only_for_replacements() -> None:
    assert (compiled("(a|(b))*").groups, capturing("(a|(b))*").groups) == (0, 2)


@pytest.mark.parametrize(
    ("regex", "matching", "other"),
    [
        ("(?P<x>a(?P<y>b)?)+", ["a", "abab"], "b"),
        ("(?<x>a)|b", ["a", "b"], "x"),
        (r"[(?P<x>]+(?P<y>c)", ["(?P<x>c"], "c"),
        (r"[](?P<x>]+(?P<y>c)", ["](?P<x>c"], "c"),
        (r"\(?P<x>(?P<y>c)", ["P<x>c", "(P<x>c"], "c"),
        (r"\Q(?P<x>\E(?P<y>c)", ["(?P<x>c"], "c"),
        (r"[[:alpha:](]+(?P<x>1)", ["a(1"], "1"),
        (r"[\](?P<x>]+(?P<y>c)", ["](?P<x>c"], "c"),
    ],
)
def test_named_groups_are_not_captured(regex: str, matching: list[str], other: str) -> None:
    pattern = compiled(regex)
    assert pattern.groups == 0
    assert [name for name in [*matching, other] if pattern.fullmatch(name)] == matching
