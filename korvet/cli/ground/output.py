"""The output of commands: tables for people, JSON for programs, one line for an error."""

from __future__ import annotations

import json
import sys
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import click

from korvet.unknown import known

if TYPE_CHECKING:
    from korvet.cli.kafka.topics import Setting

PLAIN_WIDTH = 100_000
"""The width of a table that does not go to a terminal: large enough never to wrap a line."""


def printable(text: str, kept: str = "", escape: Callable[[str], str] = repr) -> str:
    """A text with escapes for control and invisible characters, except ``kept`` ones.

    Ids and names come from any client of the broker. A zero-width joiner stays within an emoji or after a mark, where
    scripts need it.
    """
    if text.isprintable():
        return text
    before = ("", *text)
    return "".join(
        one if one.isprintable() or one in kept or _joins(last, one) else escape(one)[1:-1]
        for last, one in zip(before, text, strict=False)
    )


def _joins(last: str, one: str) -> bool:
    return one == "\u200d" and last != "" and unicodedata.category(last) in ("So", "Sk", "Mn")


def show_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table; numbers are aligned to the right, None is unknown."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    cells = [list(row) for row in rows]
    table = Table(box=None, pad_edge=False, header_style="bold")
    for index, column in enumerate(columns):
        numeric = bool(cells) and all(isinstance(row[index], int | None) for row in cells)
        table.add_column(column, justify="right" if numeric else "left", overflow="fold")
    for row in cells:
        table.add_row(*(Text(printable(known(cell))) for cell in row))
    console = Console() if sys.stdout.isatty() else Console(width=PLAIN_WIDTH, color_system=None)
    with console.capture() as capture:
        console.print(table)
    click.echo("\n".join(line.rstrip() for line in capture.get().splitlines()))


def show_settings(settings: Iterable[Setting], *, as_json: bool) -> None:
    """Print settings in effect, with the source of each value."""
    rows = [(item.name, item.value, item.source) for item in settings]
    if as_json:
        show_json([dict(zip(("name", "value", "source"), row, strict=True)) for row in rows])
    else:
        show_table(["SETTING", "VALUE", "SET BY"], rows)


def show_json(value: Any) -> None:
    """Print a value as indented JSON; errors are their texts."""
    text = json.dumps(value, indent=2, ensure_ascii=False, default=str)
    click.echo(printable_json(text) if sys.stdout.isatty() else text)


def printable_json(text: str) -> str:
    """JSON of the same value, with escapes for characters that a terminal would obey."""
    return printable(text, "\n", json.dumps)


def say_error(message: str) -> None:
    """Print one line on stderr."""
    click.echo(f"korvet: {printable(' '.join(message.split()))}", err=True)


def say_note(message: str) -> None:
    """Print one line on stderr that is not an error, so that stdout has only the command's result."""
    click.echo(message, err=True)
