"""``korvet config``: the settings of a config file, and the check of one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from korvet.cli.ground.options import as_json
from korvet.cli.ground.output import say_error, say_note, show_json, show_table

if TYPE_CHECKING:
    from korvet.settings.file import ConfigFile


@click.group()
def config() -> None:
    """Check a config file of 'korvet serve' and 'korvet pipeline', and list its settings."""


@config.command()
@click.argument("file", type=click.Path(path_type=Path))
def check(file: Path) -> None:
    """Check a config file, and print a line on stderr for each error.

    \b
    Example:  korvet config check korvet.toml
    """
    from korvet.cli.security.warnings import security_warnings
    from korvet.settings.file import as_config, load_config, problems

    content = load_config(file)
    wrong = problems(content) or _refused(as_config(content, file))
    for sentence in wrong:
        say_error(f"{file}: {sentence}")
    if wrong:
        raise click.exceptions.Exit(2)
    found = as_config(content, file)
    listeners = f", listeners: {len(found.listeners)}" if found.listeners else ""
    tables = {"[serve]": found.serve, "[broker]": found.broker}
    if found.pipeline:
        tables["[pipeline]"] = found.pipeline
    counts = ", in ".join(f"{table}: {len(settings)}" for table, settings in tables.items())
    click.echo(f"{file} has no mistakes: settings in {counts}{listeners}")
    for sentence in security_warnings(found):
        say_note(f"{file}: note: {sentence}")


def _refused(found: ConfigFile) -> list[str]:
    """The errors that 'serve' would find in a file with correct tables: of each part alone, else of all together."""
    from korvet.configs.listeners import listener_config
    from korvet.settings.file import ConfigFile
    from korvet.settings.schema import CONSOLE_NAMES, LISTENER_NAMES, TOGETHER_NAMES

    together = _why_not(found)
    if together is None:
        return []
    kin = [LISTENER_NAMES, CONSOLE_NAMES]
    kin += [(name,) for name in found.serve if name not in (*LISTENER_NAMES, *CONSOLE_NAMES, *TOGETHER_NAMES)]
    shares = [{name: found.serve[name] for name in names if name in found.serve} for names in kin]
    parts = [ConfigFile(serve=share) for share in shares]
    parts += [ConfigFile(broker={name: value for name, value in found.broker.items() if not listener_config(name)})]
    numbered = [(part, 0) for part in parts]
    numbered += [(ConfigFile(listeners=(table,)), at) for at, table in enumerate(found.listeners)]
    wrong = [why.replace("listener #1", f"listener #{at + 1}") for part, at in numbered if (why := _why_not(part))]
    return wrong or [together]


def _why_not(part: ConfigFile) -> str | None:
    from korvet.cli.serve import make_settings
    from korvet.errors import ConfigError

    try:
        make_settings({}, part)
    except ConfigError as error:
        return str(error)
    return None


@config.command("list")
@as_json
def list_(as_json: bool) -> None:
    """List every setting of [broker] with its type, default and meaning.

    \b
    Example:  korvet config list --json
    """
    from korvet.configs.brokers import BROKER_CONFIGS

    found = [setting for _, setting in sorted(BROKER_CONFIGS.items()) if not setting.is_fixed]
    if as_json:
        show_json(
            [
                {
                    "name": item.name,
                    "type": item.kind.name.lower(),
                    "default": item.default,
                    "documentation": item.documentation,
                }
                for item in found
            ]
        )
    else:
        show_table(
            ["SETTING", "TYPE", "DEFAULT", "WHAT IT DOES"],
            [(item.name, item.kind.name.lower(), item.default, item.documentation) for item in found],
        )


@config.command()
def schema() -> None:
    """Print the JSON Schema of the config file, for editors that check TOML.

    \b
    Example:  korvet config schema > korvet.schema.json
    """
    from korvet.settings.schema import config_schema

    show_json(config_schema())
