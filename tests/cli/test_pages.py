"""Pages have commands that the command line takes, and wheels of this version."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import click
import pytest

from korvet import __version__
from korvet.cli import korvet

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^    (?:.*\\\n)*.*", re.MULTILINE)
COMMAND = re.compile(r"(?:^|[|(;&]|\$\(|\s)(?:\S*/)?korvet +([a-z-].*)")
END = re.compile(r"\s[|&<>]|\)|$")
WHEEL = re.compile(r"korvet-(\d\S*?)-py3-none-any\.whl")


def pages() -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "*.md"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [ROOT / line for line in listed.splitlines() if line != "CHANGELOG.md"]


def commands() -> list[tuple[str, str]]:
    """Page and words of each command; of a synopsis the first alternative, with all that is optional."""
    found = []
    for page in pages():
        for block in BLOCK.findall(page.read_text()):
            line = re.sub(r"\\\n\s*", "", block)
            for match in COMMAND.finditer(line):
                words = match[1][: END.search(match[1]).start()]  # type: ignore[union-attr]
                if words.split()[0] in korvet.commands:
                    words = re.sub(r"\[|\]|\.\.\.|(?<=\w)\|[\w-]+(?=[ \]=])|(?<=NUMBER)\|\S+", "", words)
                    found.append((page.name, words))
    return found


@pytest.mark.parametrize(("page", "words"), commands())
def test_words_of_a_page_are_those_of_the_command_line(page: str, words: str) -> None:
    arguments = shlex.split(words)
    command: click.Command = korvet
    context = click.Context(korvet, info_name="korvet")
    while isinstance(command, click.Group):
        _, found, arguments = command.resolve_command(context, arguments)
        assert found is not None
        command, context = found, click.Context(found, parent=context, info_name=found.name)
    given, rest, _ = command.make_parser(context).parse_args(arguments)
    assert rest == [] or context.allow_extra_args
    required = [one for one in command.params if one.required]
    assert [one.name for one in required if one.name is None or given.get(one.name) is None] == []


def test_pages_have_the_commands() -> None:
    assert len({page for page, _ in commands()}) > 12 and len(commands()) > 80


def test_pages_name_the_wheel_of_this_version_and_no_index() -> None:
    texts = {page.name: page.read_text() for page in pages()}
    assert {version for text in texts.values() for version in WHEEL.findall(text)} == {__version__}
    assert [name for name, text in texts.items() if re.search(r"pip install '?korvet(\[|\s|$)", text)] == []
