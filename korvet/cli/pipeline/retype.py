"""``korvet pipeline retype``: the typed table and the dead letters of a topic, built anew."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from korvet.cli.ground.options import as_json
from korvet.cli.ground.output import show_json, show_table
from korvet.cli.pipeline.archive import schema_text
from korvet.cli.pipeline.options import Common, common, lake, schema_registry


@click.command()
@lake
@click.option("--topic", required=True, metavar="NAME", help="The topic.")
@click.option(
    "--schema",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="The JSON Schema.  [default: the topic's setting korvet.value.schema]",
)
@schema_registry
@as_json
@common
def retype(
    common: Common, lake: str, topic: str, schema: Path | None, schema_registry: str | None, as_json: bool
) -> None:
    """Build a topic's typed table and dead letters anew of its raw table.

    Each record is judged by the schema as it is now. End the topic's archive before. If this is cut off, run it again.

    \b
    Example:  korvet pipeline retype --lake lake --topic orders
    """
    text = None if schema is None else schema_text(schema)
    from korvet.cli.pipeline.running import spark_session

    with spark_session(common, "retype") as spark:
        from korvet.pipeline.retype import RetypeConfig
        from korvet.pipeline.retype import retype as run

        result = run(
            spark,
            RetypeConfig(
                bootstrap_servers=common.bootstrap_server,
                lake=lake,
                topic=topic,
                schema=text,
                schema_registry=schema_registry,
                client=common.client,
            ),
        )
    if as_json:
        show_json(asdict(result))
    else:
        show_table(["TOPIC", "TYPED ROWS", "DEAD LETTERS"], [(topic, result.typed, result.dead_letters)])
