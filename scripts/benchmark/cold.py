"""An archive as the first work of a new Spark, in a process of its own; the seconds of its parts.

- python_s: from the process's start until its packages are imported.
- session_s: until Java and Spark are there, with Delta's jars on disk.
- archive_s: from the call of the archive to its return.
- end_s: until the process has ended.
- all_s: the sum.
"""

import json
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import click

from korvet.pipeline.archive import ArchiveConfig, archive
from korvet.pipeline.broker import Broker
from korvet.pipeline.session import make_session
from scripts.benchmark.measures import START
from scripts.benchmark.rounds import Values
from scripts.benchmark.targets import ROOT, Target

HANGS_S = 600.0


class PipelineFailed(RuntimeError):
    """Not all records came through."""


def session_settings(directory: Path) -> dict[str, str]:
    """Settings of a Spark in this machine with Delta and the stock connector, its files in `directory`."""
    from tests.pipeline.conftest import JARS, POM
    from tests.support.kafka import fetch_dependencies

    return {
        "spark.jars": ",".join(str(path) for path in sorted(fetch_dependencies(POM, JARS).glob("*.jar"))),
        "spark.driver.memory": "2g",
        "spark.local.dir": str(directory / "spark"),
        "spark.sql.session.timeZone": "UTC",
    }


def archived(address: str, topic: str, lake: Path, source: Literal["korvet", "kafka"] = "korvet") -> dict[str, float]:
    """Archive a topic in a new process. Returns the seconds of its parts.

    :raises PipelineFailed:
    """
    settings, began = session_settings(lake.parent), time.time()
    job = {
        "began": began, "address": address, "topic": topic, "lake": str(lake), "source": source, "settings": settings,
    }  # fmt: skip
    command = [sys.executable, "-m", "scripts.benchmark.cold", json.dumps(job)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=HANGS_S)
    ended = time.time()
    if done.returncode != 0:
        raise PipelineFailed(f"the archive of {topic} failed:\n{done.stderr[-3000:]}")
    moments: list[float] = [began, *json.loads(done.stdout.splitlines()[-1]), ended]
    parts = [later - earlier for earlier, later in pairwise(moments)]
    return dict(zip([line.key for line in START.lines], [*parts, ended - began], strict=True))


def run(target: Target, directory: Path, rounds: int, report: Callable[[str], None]) -> Values:
    """Archives of an empty topic; round 0 fills the machine's caches and is not counted.

    :raises PipelineFailed:
    """
    results: Values = defaultdict(lambda: defaultdict(list))
    with Broker({"bootstrap.servers": target.address}) as broker:
        broker.create_topic(START.name, 1, {})
    for number in range(rounds + 1):
        report(f"{START.name}: round {number} of {rounds}")
        for key, seconds in archived(target.address, START.name, directory / "empty").items():
            if number:
                results[START.name, key]["korvet"].append(seconds)
    target.delete_topic(START.name)
    return results


def _archive(job: Mapping[str, Any]) -> list[float]:
    """The moments after imports, after the start of Spark, and after the archive, in seconds since 1970."""
    moments = [time.time()]
    spark = make_session("bench", settings=job["settings"])
    spark.sparkContext.setLogLevel("ERROR")
    moments.append(time.time())
    config = ArchiveConfig(
        bootstrap_servers=job["address"], topics=(job["topic"],), lake=job["lake"], source=job["source"]
    )
    failed = archive(spark, config).failed
    moments.append(time.time())
    for error in failed.values():
        raise error
    spark.stop()
    return moments


if __name__ == "__main__":
    click.echo(json.dumps(_archive(json.loads(sys.argv[1]))))
