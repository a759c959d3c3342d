"""Rebuild a topic's typed table and dead letters from its raw table, by the topic's present schema.

Each step is one commit. After a kill between any two, anyone may repeat all of them:

1. A claim on the raw table ends a running archive, so the raw table's proof stays.
2. A claim on the typed table marks it as `RETYPING`. No archive claims such a table.
3. The dead letters are replaced.
4. The typed rows are replaced, which removes the mark.

Archives go on from the raw table's proof, which both tables then have.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from pyspark.sql import DataFrame, SparkSession

from korvet.pipeline.archive.batch import VALUE_SCHEMA, Tables
from korvet.pipeline.broker import Broker
from korvet.pipeline.client_settings import client_settings
from korvet.pipeline.errors import PipelineError
from korvet.pipeline.failures import SPARK_ERRORS
from korvet.pipeline.lake import Lake
from korvet.pipeline.lake.table import write_failure
from korvet.pipeline.plan.proofs import Proven, within
from korvet.pipeline.plan.table import RETYPING
from korvet.pipeline.registry import registry
from korvet.pipeline.typed import UNREADABLE, dead_letters, judged, table_type, typed_rows


@dataclass(frozen=True, slots=True, kw_only=True)
class RetypeConfig:
    """A topic of a lake.

    :param schema: the JSON Schema; None asks the broker for the topic's setting ``korvet.value.schema``.
    :param schema_registry: URL of the registry with the Avro schemas of its values, if it has no JSON Schema.
    :param client: the Kafka client's settings, by the Java client's names.
    """

    bootstrap_servers: str
    lake: str
    topic: str
    schema: str | None = None
    schema_registry: str | None = None
    client: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class RetypeResult:
    """The numbers of rows in both tables."""

    typed: int
    dead_letters: int


def retype(spark: SparkSession, config: RetypeConfig) -> RetypeResult:
    """Rebuild both tables. Each record is judged twice, so that memory and local disk need not hold the table.

    :raises PipelineError: if there is no raw table or no schema, if the raw table lacks records of the others, or if an
        archive or another retype comes between.
    """
    tables = Tables(spark, Lake(config.lake), config.topic)
    if tables.raw.proven is None:
        raise PipelineError(f"topic {config.topic}: it has no raw table in {config.lake}; archive the topic first")
    schema = _schema(config)
    if config.schema_registry is not None:
        # Dead letters of unknown ids may be the reason for this run.
        registry(config.schema_registry).ask_again()
    try:
        _judged(tables, schema, config)
        _check_complete(tables)
        proven = _claimed(tables, tables.raw.proven)
        judged = _judged(tables, schema, config)
        wrong = _replace_dead_letters(tables, dead_letters(judged), proven)
        return RetypeResult(typed=tables.typed.replace(typed_rows(judged), proven), dead_letters=wrong)
    except SPARK_ERRORS as error:
        raise write_failure(config.topic, error) from None


def _judged(tables: Tables, schema: str | None, config: RetypeConfig) -> DataFrame:
    """The raw table's records with their verdicts.

    :raises PipelineError: if there is no schema that gives columns.
    """
    assert tables.raw.rows is not None
    found = judged(tables.raw.rows, schema, config.schema_registry, None)
    if found is None:
        raise PipelineError(
            f"topic {config.topic}: no value has an Avro schema of the registry that gives columns, and it has no "
            f"setting {VALUE_SCHEMA}; set one, or give --schema FILE"
        )
    return found[1]


def _schema(config: RetypeConfig) -> str | None:
    schema = config.schema
    if schema is None:
        settings = {f"kafka.{name}": value for name, value in config.client.items()}
        with Broker(client_settings({**settings, "kafka.bootstrap.servers": config.bootstrap_servers})) as broker:
            schema = broker.topic_settings(config.topic).get(VALUE_SCHEMA)
    if not schema and config.schema_registry is None:
        raise PipelineError(f"topic {config.topic}: it has no setting {VALUE_SCHEMA}; set one, or give --schema FILE")
    return schema or None


def _check_complete(tables: Tables) -> None:
    """:raises PipelineError: if the raw table lacks a record of the others, below its proof: it would be lost."""
    assert tables.raw.rows is not None and tables.raw.proven is not None
    has = tables.raw.rows.select("partition", "offset")
    # The archive writes the others again.
    below = within({number: (0, end) for number, end in tables.raw.proven.offsets.items()})
    for table, prefix in ((tables.typed, "_"), (tables.dead_letters, "")):
        if table.rows is None:
            continue
        rows = table.rows if prefix else table.rows.where(f"not ({UNREADABLE})")
        records = rows.selectExpr(*(f"{prefix}{name} as {name}" for name in has.columns))
        for lacking in records.where(below).join(has, has.columns, "left_anti").take(1):
            raise PipelineError(
                f"{tables.raw.path}: it lacks offset {lacking.offset} of partition {lacking.partition}, which "
                f"{table.path} has; building that anew would lose the record, so nothing was changed"
            )


def _claimed(tables: Tables, known: Proven) -> Proven:
    """Claim the three tables; returns the proof for the two that are rebuilt."""
    tables.raw.claim(known.topic, known.topic_id, "")
    assert tables.raw.proven is not None
    proven = replace(tables.raw.proven, checkpoint="", is_claim=False)
    if tables.typed.rows is None:
        mark = replace(proven, generation=1, batch_id=-1, offsets={}, leader_epochs={}, checkpoint=RETYPING)
        tables.typed.begin(table_type("{}", None), mark)
    else:
        tables.typed.claim(known.topic, known.topic_id, RETYPING)
    tables.dead_letters.claim(known.topic, known.topic_id, "")
    return proven


def _replace_dead_letters(tables: Tables, found: DataFrame, proven: Proven) -> int:
    if tables.dead_letters.rows is not None:
        # Records that cannot be read are in no raw table, and are judged by no schema.
        kept = tables.dead_letters.rows.where(UNREADABLE)
        return tables.dead_letters.replace(found.unionByName(kept), proven)
    return 0 if found.isEmpty() else tables.dead_letters.append(found, proven)
