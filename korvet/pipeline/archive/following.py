"""The typed table and the dead letters, which follow the raw table.

The raw table gets each batch first. Then the dead letters and the typed rows get what they lack of it, in two commits,
each with the table's proof. So nothing that stops these two, a schema or a registry, stops the raw table: they judge
the rest of its rows later. Anyone may repeat a step that was cut off:

- Dead letters come before typed rows: the dead letters of all that the typed table has are written.
- If dead letters are ahead of the typed table, they stay; the archive judges the other records anew.

The typed table begins before the raw table gets the first batch with a schema. What came earlier is `retype`'s.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

import structlog
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from korvet.pipeline.archive.config import ArchiveConfig
from korvet.pipeline.errors import Passing, PipelineError
from korvet.pipeline.failures import SPARK_ERRORS
from korvet.pipeline.lake.table import Table, write_failure
from korvet.pipeline.plan.batch import limited
from korvet.pipeline.plan.proofs import Proven, followed, lacking, within
from korvet.pipeline.plan.table import Overtaken
from korvet.pipeline.tries import Tries
from korvet.pipeline.typed import JsonVerdicts, dead_letters, judged, table_type, typed_rows, widened

log = structlog.get_logger()

Judged = tuple[StructType, DataFrame]
"""The typed table's type, and records with their verdicts."""
_EMPTY_SCHEMA: Final = "{}"


class TypedTables:
    """Both tables of a topic, as one archive writes them.

    :param raw: the table that they follow.
    :param schema: the topic's JSON Schema, as the archive last read it.
    """

    def __init__(self, config: ArchiveConfig, topic: str, raw: Table, typed: Table, dead: Table) -> None:
        self._config, self._topic = config, topic
        self._raw, self._typed, self._dead = raw, typed, dead
        self._tries = Tries()
        self.schema: str | None = None
        self.error: PipelineError | None = None
        """Why the tables do not follow at present."""

    @property
    def is_due(self) -> bool:
        """True if the tables lack something, and it is time to try."""
        return self._can_judge and bool(self._lack) and self._tries.is_due

    def verdicts(self, begins: Mapping[int, int]) -> JsonVerdicts | None:
        """The verdicts for a batch of the topic by its JSON Schema, if the typed table has all below it."""
        if self.schema is None or not self._is_at(begins):
            return None
        try:
            return JsonVerdicts(self.schema, table_type(self.schema, self._type))
        except PipelineError as error:
            self._fail(error)
            return None

    def by_registry(self, records: DataFrame, begins: Mapping[int, int]) -> Judged | None:
        """A batch of the topic with the verdicts by the registry, if the typed table has all below it."""
        if self.schema is not None or self._config.schema_registry is None or not self._is_at(begins):
            return None
        try:
            return judged(records, None, self._config.schema_registry, self._type)
        except Passing as error:
            self._fail(error)
            # The batch has values of its schemas, so the table gets them later.
            return None if self._typed.proven is not None else (table_type(_EMPTY_SCHEMA, None), records)
        except PipelineError as error:
            self._fail(error)
            return None

    def begin(self, columns: StructType, proven: Proven, begins: Mapping[int, int]) -> None:
        """Make the typed table, unless it is there.

        :param proven: the raw table's proof with the batch.
        """
        if self._typed.proven is None:
            self._typed.begin(columns, replace(proven, generation=1, batch_id=-1, offsets=dict(begins), losses=()))

    def follow(self, writer: str, fresh: Judged | None = None) -> None:
        """Write what the tables lack of the raw one. Afterwards `error` says why they still lack something.


        :param fresh: exactly what they lack, with the verdicts.
        :raises Overtaken: if another archive writes to them.
        """
        try:
            if self.schema is not None:
                table_type(self.schema, self._type)
            while self._can_judge and (lack := self._lack):
                self._write(self._judged(lack) if fresh is None else fresh, self._target(lack, fresh), writer)
                fresh = None
        except Overtaken:
            raise
        except (*SPARK_ERRORS, PipelineError) as error:
            self._fail(write_failure(self._topic, error))
        else:
            self._tries.succeed()
            self.error = None

    def _fail(self, error: PipelineError) -> None:
        wait_s = self._tries.fail()
        self.error = type(error)(f"topic {self._topic}: typed table: {error}; the raw table has all records")
        log.error("typed table does not follow", topic=self._topic, reason=str(error), again_in_s=wait_s)

    @property
    def _can_judge(self) -> bool:
        return self._typed.proven is not None and (self.schema is not None or self._config.schema_registry is not None)

    @property
    def _type(self) -> StructType | None:
        rows = self._typed.rows
        return None if rows is None else rows.schema

    @property
    def _lack(self) -> dict[int, tuple[int, int]]:
        if self._typed.proven is None or self._raw.proven is None:
            return {}
        return lacking(self._typed.proven, self._raw.proven)

    def _is_at(self, begins: Mapping[int, int]) -> bool:
        """True if the typed table ends exactly at these offsets, or begins with them."""
        if self._typed.proven is None:
            return True
        return not self._lack and all(self._typed.next_offset(number) == begin for number, begin in begins.items())

    def _target(self, lack: Mapping[int, tuple[int, int]], fresh: Judged | None) -> Proven:
        """The offsets of the raw table that the tables cover after the next write."""
        assert self._raw.proven is not None
        most = None if fresh is not None else self._config.max_offsets_per_trigger
        begins, ends = ({number: pair[at] for number, pair in lack.items()} for at in (0, 1))
        return replace(self._raw.proven, offsets={**self._raw.proven.offsets, **limited(begins, ends, most)})

    def _judged(self, lack: Mapping[int, tuple[int, int]]) -> Judged:
        """The raw table's rows that the typed one lacks, with their verdicts."""
        assert self._raw.rows is not None
        ends = self._target(lack, None).offsets
        ranges = {number: (begin, ends[number]) for number, (begin, _) in lack.items()}
        found = judged(self._raw.rows.where(within(ranges)), self.schema, self._config.schema_registry, self._type)
        assert found is not None, "a table, and a schema or a registry"
        return found

    def _write(self, found: Judged, target: Proven, writer: str) -> None:
        self._widen(found[0])
        records = found[1].persist()
        try:
            left = self._without_dead_letters(records)
            wrong = dead_letters(left)
            # The count has all records judged, by tasks side by side.
            if wrong.count():
                self._dead.append(in_few_files(wrong), followed(self._dead.proven, target, writer))
            self._typed.append(in_few_files(typed_rows(left)), followed(self._typed.proven, target, writer))
        finally:
            records.unpersist()

    def _widen(self, wanted: StructType) -> None:
        """Write the typed table anew if a column's type becomes a wider one."""
        rows = None if self._typed.rows is None else widened(self._typed.rows, wanted)
        if rows is not None:
            assert self._typed.proven is not None
            log.info("numbers need a wider type: the archive writes the typed table anew", table=self._typed.path)
            self._typed.replace(rows, self._typed.proven)

    def _without_dead_letters(self, found: DataFrame) -> DataFrame:
        """The records that are not among the dead letters, which may be ahead of the typed rows."""
        if self._dead.proven is None or self._typed.proven is None:
            return found
        if not lacking(self._typed.proven, self._dead.proven):
            return found
        assert self._dead.rows is not None
        # After a loss the table may hold a letter for an offset that another record now has.
        record = ["partition", "offset", "timestamp"]
        same = F.expr(" and ".join(f"judged.{name} <=> dead.{name}" for name in (*record, "value")))
        return found.alias("judged").join(self._dead.rows.alias("dead"), same, "left_anti")


def in_few_files(rows: DataFrame) -> DataFrame:
    """One file for each task that runs at once, however many partitions there are."""
    return rows.coalesce(rows.sparkSession.sparkContext.defaultParallelism)
