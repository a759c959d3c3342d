"""``korvet pipeline job``: the file that spark-submit takes."""

from __future__ import annotations

import click


@click.command()
@click.argument("verb", type=click.Choice(["archive", "replay", "report", "retype", "maintain", "iceberg"]))
@click.option("--packages", is_flag=True, help="Print the options by which spark-submit fetches Delta before the path.")
@click.option(
    "--add",
    multiple=True,
    metavar="GROUP:ARTIFACT:VERSION",
    help="Have spark-submit fetch this package, too; may be repeated.",
)
def job(verb: str, packages: bool, add: tuple[str, ...]) -> None:
    """Print the path of a verb's file for spark-submit; the verb's own flags follow it.

    \b
    spark-submit --master URL $(korvet pipeline job --add org.apache.hadoop:hadoop-aws:3.5.0 archive) \\
        --topic orders --lake s3a://bucket/lake
    """
    from importlib.resources import files

    words = [str(files("korvet.jobs") / f"{verb}.py")]
    if packages or add:
        words[:0] = _fetching(add)
    click.echo(" ".join(words))


def _fetching(added: tuple[str, ...]) -> list[str]:
    from korvet.pipeline.packages import excludes, packages

    for package in added:
        if len(package.split(":")) != 3 or "," in package:
            raise click.UsageError(f"{package} is not GROUP:ARTIFACT:VERSION, as Maven names packages")
    return ["--packages", packages(added), "--exclude-packages", excludes()]
