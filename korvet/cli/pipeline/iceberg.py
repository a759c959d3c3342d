"""``korvet pipeline iceberg``: the lake's tables in a catalog of Iceberg."""

from __future__ import annotations

from dataclasses import asdict

import click

from korvet.cli.ground.options import as_json
from korvet.cli.ground.output import show_json, show_table
from korvet.cli.pipeline.options import Common, common, lake


@click.command()
@lake
@click.option(
    "--catalog",
    required=True,
    metavar="URI|NAME",
    help="A REST catalog (http://…), a database (sqlite:///FILE), or a catalog's name in pyiceberg's configuration.",
)
@click.option(
    "--catalog-name",
    default="korvet",
    show_default=True,
    metavar="NAME",
    help="The catalog's name in a database, which its readers have to give.",
)
@click.option("--topic", "topics", multiple=True, metavar="NAME", help="Only this topic's tables. May be given again.")
@as_json
@common
def iceberg(common: Common, lake: str, catalog: str, catalog_name: str, topics: tuple[str, ...], as_json: bool) -> None:
    """Give a catalog of Iceberg the lake's tables as they are now, over the same files.

    Run it again after an archive or maintenance. If it is cut off, run it again.

    \b
    Example:  korvet pipeline iceberg --lake lake --catalog http://127.0.0.1:8181
    """
    from korvet.cli.pipeline.running import end, spark_session

    with spark_session(common, "iceberg") as spark:
        from korvet.pipeline.iceberg import IcebergConfig, publish

        result = publish(spark, IcebergConfig(lake=lake, catalog=catalog, catalog_name=catalog_name, topics=topics))
    tables = [done for _, done in sorted(result.tables.items())]
    if as_json:
        show_json([asdict(done) for done in tables])
    else:
        show_table(
            ["TABLE", "DELTA VERSION", "FILES ADDED", "FILES REMOVED"],
            [(done.name, done.delta_version, done.files_added, done.files_removed) for done in tables],
        )
    end(result.failed.values())
