"""Two drivers of Spark and one that maintains, on one table of an S3 of moto's; then a comparison of what it has.

    ./scripts/rivals --rounds 100
    ./scripts/rivals --rounds 100 --default-store     # Delta's own log store for S3, for one driver

The exit code is 1 if the table lacks a row that a driver wrote, or has one twice, or if maintenance joined no files.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

import click
from pyspark.sql import SparkSession

from korvet.pipeline.lake import Lake
from korvet.pipeline.lake.maintain import MaintainConfig, maintain
from korvet.pipeline.session import make_session
from scripts.rivalry.rounds import TOPIC, Acknowledged, compactions, differences, play
from tests.pipeline.conftest import JARS, POM
from tests.support.kafka import fetch_dependencies
from tests.support.object_store import ObjectStore, running_object_store, s3a_jars

RIVALS = ("a", "b")
MAINTAINER = "maintain"
WITHIN_S = 7200.0
_DEFAULT_STORE = {"spark.delta.logStore.s3a.impl": "io.delta.storage.S3SingleDriverLogStore"}


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/rivals", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=100, metavar="N", help="commits that each driver tries")
    parser.add_argument("--default-store", action="store_true", help="use Delta's own log store")
    parser.add_argument("--part", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.part:
        part, url, directory = given.part
        work(part, url, directory, given.rounds, json.load(sys.stdin))
        return 0
    with tempfile.TemporaryDirectory() as directory, running_object_store(Path(directory)) as store:
        return contest(store, directory, given.rounds, given.default_store)


def contest(store: ObjectStore, directory: str, rounds: int, default_store: bool) -> int:
    """Run the drivers side by side, and print what the table has."""
    jars = ",".join([*(str(each) for each in sorted(fetch_dependencies(POM, JARS).glob("*.jar"))), s3a_jars()])
    settings = {"spark.jars": jars, "spark.driver.memory": "700m", **store.settings}
    settings |= _DEFAULT_STORE if default_store else {}
    parts = [_start(part, store.url, directory, rounds, settings) for part in (*RIVALS, MAINTAINER)]
    try:
        outputs = [part.communicate(timeout=WITHIN_S)[0].splitlines() for part in parts[:-1]]
        parts[-1].terminate()
    finally:
        for part in parts:
            part.kill()
            part.wait()
    rows = [Acknowledged(**json.loads(line)) for lines in outputs for line in lines if line.startswith("{")]
    failed = [line for lines in outputs for line in lines if not line.startswith("{")]
    spark = _session("check", directory, settings)
    path = Lake(store.url).raw(TOPIC)
    wrong, joined = differences(spark, path, rows), compactions(spark, path)
    click.echo(f"rounds: {rounds} of each driver; rows written: {len(rows)}; drivers that failed: {failed or 'none'}")
    click.echo(f"commits of maintenance: {joined}")
    click.echo("\n".join(wrong) if wrong else "the table has each of them once")
    spark.stop()
    return 1 if wrong or failed or not joined else 0


def _start(part: str, url: str, directory: str, rounds: int, settings: dict[str, str]) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "scripts.rivalry", "--rounds", str(rounds), "--part", part, url, directory]
    with open(f"{directory}/{part}.log", "w") as log:
        started = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True)
    assert started.stdin is not None
    started.stdin.write(json.dumps(settings))
    started.stdin.close()
    started.stdin = None
    return started


def work(part: str, url: str, directory: str, rounds: int, settings: dict[str, str]) -> None:
    """Play one part: a rival prints a line for each row that it wrote, and for the error that ended it."""
    spark = _session(part, directory, settings)
    if part == MAINTAINER:
        _maintain_for_good(spark, url)
    try:
        for row in play(spark, Lake(url).raw(TOPIC), part, rounds):
            if row is not None:
                click.echo(json.dumps(asdict(row)))
    except Exception as error:
        click.echo(f"driver {part}: {str(error).splitlines()[0]}")


def _maintain_for_good(spark: SparkSession, url: str) -> None:
    while True:
        try:
            maintain(spark, MaintainConfig(lake=url, topics=(TOPIC,)))
        except Exception as error:
            click.echo(error, err=True)


def _session(name: str, directory: str, settings: dict[str, str]) -> SparkSession:
    session = make_session(name, "local[1]", {**settings, "spark.local.dir": f"{directory}/{name}"})
    session.sparkContext.setLogLevel("ERROR")
    return session


if __name__ == "__main__":
    sys.exit(main())
