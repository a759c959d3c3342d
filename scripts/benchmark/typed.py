"""Rows a second into a raw table and a typed one, beside those into a raw table alone: `korvet pipeline archive`.

Values are JSON objects of about 150 B. One schema has types and required members, the other one patterns and formats
as well.
"""

import json
import shutil
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from itertools import product
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from pyspark.sql import SparkSession

from korvet.pipeline.archive import ArchiveConfig, archive
from korvet.pipeline.lake import Lake
from scripts.benchmark.cold import PipelineFailed
from scripts.benchmark.measures import TYPED, TYPED_WAYS
from scripts.benchmark.pipeline import Sender, fill
from scripts.benchmark.rounds import Values, round_name
from scripts.benchmark.targets import Target

_TYPES: Final[Mapping[str, Any]] = MappingProxyType(
    {
        "id": {"type": "integer"},
        "amount": {"type": "number"},
        "city": {"type": "string"},
        "is_open": {"type": "boolean"},
        "note": {"type": "string"},
    }
)
_PATTERNS: Final = {
    **_TYPES,
    "at": {"type": "string", "format": "date-time"},
    "code": {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{6}$"},
    "city": {"enum": ["Bonn", "Lyon", "Oslo"]},
}
SCHEMAS: Final = {
    name: json.dumps({"type": "object", "properties": {**properties}, "required": [*properties]})
    for name, properties in (("types", _TYPES), ("patterns", _PATTERNS))
}


class JsonSender(Sender):
    """A producer of numbered JSON objects that fit both schemas."""

    def value(self, number: int) -> bytes:
        """The value of a record."""
        row = {
            "id": number, "amount": number / 100, "city": ("Bonn", "Lyon", "Oslo")[number % 3],
            "is_open": number % 2 == 0, "at": f"2026-01-02T03:04:{number % 60:02}.{number % 1000:03}Z",
            "code": f"AB-{number % 1_000_000:06}", "note": "",
        }  # fmt: skip
        text = json.dumps(row, separators=(",", ":"))
        return json.dumps({**row, "note": "x" * (TYPED.value_bytes - len(text))}, separators=(",", ":")).encode()


def run(
    spark: SparkSession,
    target: Target,
    directory: Path,
    records: int,
    rounds: int,
    warm_up: int,
    report: Callable[[str], None],
) -> Values:
    """Measure each schema, in turn with an archive without one.

    :param warm_up: the uncounted rounds first, while Java still compiles.
    :raises PipelineFailed: if not all records came through.
    """
    results: Values = defaultdict(lambda: defaultdict(list))
    fill(target, TYPED.name, JsonSender(target.address, TYPED.name, TYPED.value_bytes), records)
    for number in range(1 - warm_up, rounds + 1):
        counts = number > 0
        report(f"{TYPED.name}: {round_name(number, rounds, warm_up)}")
        for line, way in product(TYPED.lines, TYPED_WAYS if number % 2 else TYPED_WAYS[::-1]):
            rate = _archived(spark, target, directory / "typed", records, SCHEMAS[line.key] if way == "typed" else "")
            if counts:
                results[TYPED.name, line.key][way].append(rate)
    target.delete_topic(TYPED.name)
    return results


def _archived(spark: SparkSession, target: Target, directory: Path, records: int, schema: str) -> float:
    """Rows a second into an empty lake."""
    shutil.rmtree(directory, ignore_errors=True)
    config = ArchiveConfig(
        bootstrap_servers=target.address, topics=(TYPED.name,), lake=str(directory), schemas={TYPED.name: schema}
    )
    started = time.perf_counter()
    archive(spark, config)
    rate = records / (time.perf_counter() - started)
    lake = Lake(str(directory))
    for table in (lake.raw(TYPED.name), *([lake.typed(TYPED.name)] if schema else [])):
        found = spark.read.format("delta").load(table).count()
        if found != records:
            raise PipelineFailed(f"{table} has {found} of {records} records")
    return rate
