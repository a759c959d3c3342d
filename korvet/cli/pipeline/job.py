"""``korvet pipeline job``: the file that spark-submit takes."""

from __future__ import annotations

import click


@click.command()
@click.argument("verb", type=click.Choice(["archive", "replay", "report", "maintain"]))
@click.option("--packages", is_flag=True, help="Print the options by which spark-submit fetches Delta before the path.")
def job(verb: str, packages: bool) -> None:
    """Print the path of a verb's file for spark-submit; the verb's own flags follow it.

    \b
    spark-submit --master URL $(korvet pipeline job --packages archive) --topic orders --lake s3a://lake
    """
    from importlib.resources import files

    words = [str(files("korvet.jobs") / f"{verb}.py")]
    if packages:
        from korvet.cli.pipeline.running import need_packages

        need_packages()
        from korvet.pipeline.session import DELTA_PACKAGES, EXCLUDED_PACKAGES

        words[:0] = ["--packages", ",".join(DELTA_PACKAGES), "--exclude-packages", ",".join(EXCLUDED_PACKAGES)]
    click.echo(" ".join(words))
