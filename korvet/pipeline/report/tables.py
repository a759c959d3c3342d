"""Reports appended to tables, so that lags become a history too."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Final, Literal

from pyspark.sql import SparkSession

from korvet.pipeline.report.figures import Report

Format = Literal["delta", "parquet"]
_SCHEMAS: Final = {
    "lags": "group string, topic string, partition int, committed long, end long, lag long",
    "intervals": "topic string, start timestamp, interval_s double, records long, bytes long",
    "days": "topic string, date date, records long, bytes long, files long",
}


def save(spark: SparkSession, report: Report, directory: str, form: Format) -> None:
    """Append the figures to the tables ``lags``, ``intervals`` and ``days`` of a directory, each row with ``made_at``.

    :param directory: a path or URL; the first report makes the tables.
    """
    rows: dict[str, list[dict[str, Any]]] = {
        "lags": [{**asdict(lag), "lag": lag.lag} for lag in report.lags],
        "intervals": [{**asdict(interval), "interval_s": report.interval_s} for interval in report.intervals],
        "days": [asdict(day) for day in report.days],
    }
    for name, schema in _SCHEMAS.items():
        if rows[name]:
            stamped = [{**row, "made_at": report.made_at} for row in rows[name]]
            frame = spark.createDataFrame(stamped, f"made_at timestamp, {schema}")
            frame.coalesce(1).write.format(form).mode("append").save(f"{directory.rstrip('/')}/{name}")
