"""The driver of a replay under fire: a process that a run kills with its group. Its argument is its order."""

from __future__ import annotations

import json
import os
import sys
from functools import partial
from pathlib import Path
from unittest.mock import patch

from pyspark.sql import SparkSession

from korvet.pipeline.replay import run, task
from korvet.pipeline.session import make_session
from scripts.chaosrun.pipeline import replay_tasks
from scripts.chaosrun.pipeline.replay import TOPIC, Order
from tests.pipeline.replaying import numbered, write


def main(order: Order) -> None:
    settings = {
        "spark.jars": order.jars,
        "spark.driver.memory": "1g",
        # It is killed before better code would pay.
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.sql.session.timeZone": "UTC",
        "spark.local.dir": order.scratch,
        # The workers import this clone's modules.
        "spark.executorEnv.PYTHONPATH": os.environ["PYTHONPATH"],
    }
    spark = make_session("replay under fire", "local[2]", settings)
    spark.sparkContext.setLogLevel("ERROR")
    if order.prepares:
        write(numbered(spark, order.count, order.partitions, size_bytes=order.size_bytes), order.lake, TOPIC)
    else:
        _replay(spark, order)
    spark.stop()


def _replay(spark: SparkSession, order: Order) -> None:
    task.run = partial(replay_tasks.run, order.marker if order.holds else None, order.forgets)
    # Twenty windows, so that faults meet it in the middle.
    with patch.multiple(run, FIRST_STEP=max(1, order.count // order.partitions // 20), _LONG_S=0.0):
        result = run.replay(spark, order.config)
    Path(order.result).write_text(json.dumps({"complete": result.complete, "total": result.total}))


if __name__ == "__main__":
    main(Order(**json.loads(sys.argv[1])))
