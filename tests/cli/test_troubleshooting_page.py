"""docs/troubleshooting.md quotes the code's messages, and names existing commands."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from korvet.cli import korvet

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "troubleshooting.md"
ANYTHING = "…"
CODE = re.compile(r"`([^`]+)`")


def rows() -> list[list[str]]:
    """The cells of each row but the head."""
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


@pytest.fixture(scope="module")
def said() -> str:
    """Every text in the code, a line each, with names of facts as `name=`."""
    texts = [path.read_text() for path in (ROOT / "lua").glob("*/*.lua")]
    for path in (ROOT / "korvet").rglob("*.py"):
        texts += _texts(ast.parse(path.read_text()))
    return "\n".join(texts)


def _texts(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
            yield f"{node.value}="
        elif isinstance(node, ast.Call):
            yield from (f"{keyword.arg}=" for keyword in node.keywords if keyword.arg)


def test_code_has_every_line_that_the_page_quotes(said: str) -> None:
    missing = [
        fixed
        for _, quoted, _ in rows()
        if "Redis's words" not in quoted
        for text in CODE.findall(quoted)
        for fixed in text.split(ANYTHING)
        if fixed.strip() and fixed not in said and not text.startswith("korvet ")
    ]
    assert not missing


def test_every_row_quotes_something() -> None:
    assert [row for row in rows() if len(row) != 3 or not CODE.search(row[1])] == []


def test_every_command_of_the_page_exists_with_its_options() -> None:
    found = [text for row in rows() for text in CODE.findall(" ".join(row)) if text.startswith("korvet ")]
    assert len(found) > 5
    for text in found:
        _check(shlex.split(text)[1:], korvet, text)


def _check(words: list[str], command: click.Command, text: str) -> None:
    if isinstance(command, click.Group):
        assert words and words[0] in command.commands, text
        _check(words[1:], command.commands[words[0]], text)
        return
    options = {name for parameter in command.params for name in parameter.opts}
    assert {word for word in words if word.startswith("-")} <= options, text
