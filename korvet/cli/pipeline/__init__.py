"""``korvet pipeline``: topics into a lake and back, on Spark. Needs the extra ``korvet[spark]`` and Java."""

from __future__ import annotations

import click

from korvet.cli.pipeline.archive import archive
from korvet.cli.pipeline.iceberg import iceberg
from korvet.cli.pipeline.job import job
from korvet.cli.pipeline.maintain import maintain
from korvet.cli.pipeline.replay import replay
from korvet.cli.pipeline.report import report
from korvet.cli.pipeline.retype import retype
from korvet.cli.pipeline.status import status


@click.group()
def pipeline() -> None:
    """Move topics to a lake of Delta tables and back, on Spark.

    Spark runs on this machine, or on a cluster by 'spark-submit $(korvet pipeline job archive) …'.
    """


for command in (archive, replay, report, status, retype, maintain, iceberg, job):
    pipeline.add_command(command)
