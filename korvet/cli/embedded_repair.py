"""``korvet repair``: the embedded server's data, when a part of them cannot be read."""

from __future__ import annotations

import re
from pathlib import Path

import click

from korvet.cli.ground.options import confirmed
from korvet.errors import KorvetError

_LOG = re.compile(r"korvet:\{([^:]*):(.*):(\d+)\}:log")
_SHOWN = 20


@click.command("repair")
@click.option(
    "--data-dir",
    metavar="DIR",
    default="data",
    show_default="./data",
    type=click.Path(path_type=Path),
    help="The directory of 'korvet serve', which must not run.",
)
@confirmed
def repair(data_dir: Path, execute: bool) -> None:
    """Cut the embedded server's append-only file where its first damage begins; without --execute only report it.

    The server does not start with a damaged file. All that clients wrote after the damage is lost by the cut. So a
    backup may be better. The cut bytes go to a file of their own.

    \b
    Example:  korvet repair --data-dir data
              korvet repair --data-dir data --execute
    """
    from korvet.server.processes.append_only_file import DIRECTORY, note_size
    from korvet.server.processes.append_only_repair import cut, find_damage
    from korvet.server.processes.embedded import without_server

    with without_server(data_dir) as binary:
        damage = find_damage(data_dir, binary)
        if damage is None:
            click.echo("The append-only files are whole; there is nothing to cut.")
            raise click.exceptions.Exit
        click.echo(
            f"{damage.file} is damaged at byte {damage.kept_bytes:,} of {damage.file.stat().st_size:,}. "
            f"{damage.lost_bytes:,} bytes from there on are lost"
            + (", with all of " + ", ".join(path.name for path in damage.later) if damage.later else "")
            + "."
        )
        for one in damage.lost[:_SHOWN]:
            found = _LOG.fullmatch(one.log)
            name = f"namespace {found[1]}: topic {found[2]}, partition {found[3]}" if found else one.log
            first = "the records" if one.kept is None else f"the records from offset {one.kept} on"
            click.echo(f"  {name}: {first}, up to offset {one.end - 1}")
        if len(damage.lost) > _SHOWN:
            click.echo(f"  and {len(damage.lost) - _SHOWN} further partitions")
        if not execute:
            return
        try:
            rest = cut(damage)
        except OSError as error:
            raise KorvetError(f"the file cannot be cut: {error}") from None
        note_size(data_dir / DIRECTORY)
        click.echo(f"The file is cut; the bytes are in {rest}.")
