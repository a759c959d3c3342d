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
from korvet.configs.brokers import BROKER_CONFIGS
from korvet.configs.groups import GROUP_CONFIGS
from korvet.configs.topics import TOPIC_CONFIGS

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


def test_table_of_commands_has_each_command_and_verb() -> None:
    table, _, _ = (ROOT / "docs/cli.md").read_text().partition("\n## ")
    rows = re.findall(r"^\| `(\w+) ?(\S*)` \|", table, re.MULTILINE)
    shown = {(name, verb) for name, verbs in rows for verb in verbs.split("\\|")}
    groups = {name: one.commands for name, one in korvet.commands.items() if isinstance(one, click.Group)}
    assert {name for name, _ in shown} == korvet.commands.keys()
    assert {one for one in shown if one[0] in groups} == {(name, verb) for name in groups for verb in groups[name]}


def test_configuration_page_names_each_setting_of_korvets_own() -> None:
    page = (ROOT / "docs/configuration.md").read_text()
    own = [name for name in (*TOPIC_CONFIGS, *BROKER_CONFIGS, *GROUP_CONFIGS) if name.startswith("korvet.")]
    assert [name for name in own if not re.search(rf"`{re.escape(name)}[`=]", page)] == []


def test_pages_have_the_commands() -> None:
    assert len({page for page, _ in commands()}) > 12 and len(commands()) > 60


def test_pages_name_the_wheel_of_this_version_and_no_index() -> None:
    texts = {page.name: page.read_text() for page in pages()}
    assert {version for text in texts.values() for version in WHEEL.findall(text)} == {__version__}
    assert [name for name, text in texts.items() if re.search(r"pip install '?korvet(\[|\s|$)", text)] == []
