"""A driver whose process knows host names of its own: Spark writes to tenants and reads from them by the server's name.

Run as ``python -m tests.pipeline.named_driver JARS TOPIC WAYS FILE``. WAYS has the options of each tenant. FILE gets
what each of two readers found there, korvet's and the stock connector's, or why korvet's failed.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pyspark.sql import SparkSession

from korvet.pipeline.failures import failure
from korvet.pipeline.session import make_session

READERS = ("korvet", "kafka")


def values(spark: SparkSession, reader: str, topic: str, options: dict[str, str]) -> list[str]:
    """What a reader finds in the topic."""
    read = spark.read.format(reader).options(**options).option("subscribe", topic).load()
    return [row.value for row in read.selectExpr("cast(value as string) as value").collect()]


def visited(spark: SparkSession, topic: str, tenant: str, options: dict[str, str]) -> dict[str, list[str]]:
    """What each reader finds in an empty topic, to which a record is written that names the tenant."""
    found = values(spark, "korvet", topic, options)
    written = spark.range(1).selectExpr(f"'of {tenant}' as value")
    written.write.format("korvet").options(**options).option("topic", topic).mode("append").save()
    return {reader: found + values(spark, reader, topic, options) for reader in READERS}


def main(jars: str, topic: str, ways: str, file: str) -> None:
    spark = make_session("named", "local[1]", {"spark.jars": jars, "spark.driver.memory": "1g"})
    spark.sparkContext.setLogLevel("ERROR")
    told: dict[str, dict[str, list[str]] | str] = {}
    for tenant, options in json.loads(ways).items():
        try:
            told[tenant] = visited(spark, topic, tenant, options)
        except Exception as error:
            told[tenant] = str(failure(error))
    Path(file).write_text(json.dumps(told))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
