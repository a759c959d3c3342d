"""``korvet config``: what a config file may say, and whether one is right."""

from __future__ import annotations

from pathlib import Path

import click

from korvet.cli.options import as_json
from korvet.cli.output import show_json, show_table


@click.group()
def config() -> None:
    """Check a config file of 'korvet serve' and 'korvet pipeline', and list what it may say."""


@config.command()
@click.argument("file", type=click.Path(path_type=Path))
def check(file: Path) -> None:
    """Check a config file."""
    from korvet.cli.serve import make_settings
    from korvet.errors import ConfigError
    from korvet.settings.file import read_config

    found = read_config(file)
    try:
        make_settings({}, found)
    except ConfigError as error:
        raise ConfigError(f"{file}: {error}") from None
    listeners = f", listeners: {len(found.listeners)}" if found.listeners else ""
    tables = {"[serve]": found.serve, "[broker]": found.broker}
    if found.pipeline:
        tables["[pipeline]"] = found.pipeline
    counts = ", in ".join(f"{table}: {len(settings)}" for table, settings in tables.items())
    click.echo(f"{file} is right: settings in {counts}{listeners}")


@config.command("list")
@as_json
def list_(as_json: bool) -> None:
    """List every setting of [broker], what it does and its default."""
    from korvet.store.config_tables import BROKER_CONFIGS

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
    """Print the JSON Schema of the config file, for editors that check TOML."""
    from korvet.settings.schema import config_schema

    show_json(config_schema())
