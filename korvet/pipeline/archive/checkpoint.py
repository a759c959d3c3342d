"""The checkpoint of a streaming query: its id, and where its batches end.

Spark writes ``offsets/N`` before batch N begins, and keeps the last hundred: a version, the settings, and a line for
each source. Source: OffsetSeqLog and StreamMetadata of Spark.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from pyspark.sql import SparkSession

from korvet.pipeline.errors import PipelineError
from korvet.pipeline.lake import files

Ends = Mapping[int, int]
"""The offset just past a batch, by partition. It counts markers of transactions and gaps."""


class Checkpoint:
    """A directory that Spark keeps, of a query with one topic as its only source."""

    def __init__(self, spark: SparkSession, path: str, topic: str) -> None:
        self._spark, self.path, self._topic = spark, path, topic

    def query_id(self) -> str:
        """Spark's id of the checkpoint, which no other one has; empty if Spark has not begun it.

        :raises PipelineError: if it cannot be read.
        """
        text = files.read_text(self._spark, f"{self.path}/metadata")
        if text is None:
            return ""
        try:
            return str(json.loads(text)["id"])
        except (ValueError, KeyError):
            raise self._broken("metadata") from None

    def ends(self, batch_id: int) -> Ends:
        """Where the batch ends.

        :raises PipelineError: if that cannot be read, or belongs to another topic.
        """
        name = f"offsets/{batch_id}"
        text = files.read_text(self._spark, f"{self.path}/{name}")
        lines = (text or "").splitlines()
        if len(lines) != 3 or lines[0] != "v1":
            raise self._broken(name)
        try:
            offsets = json.loads(lines[2])
        except ValueError:
            raise self._broken(name) from None
        if list(offsets) not in ([self._topic], []):
            raise PipelineError(
                f"{self.path}: this checkpoint is of {', '.join(offsets)} and not of topic {self._topic}; name another"
            )
        return {int(number): offset for number, offset in offsets.get(self._topic, {}).items()}

    def delete(self) -> None:
        """Delete the checkpoint, so that the next query begins anew.

        :raises PipelineError:
        """
        files.delete(self._spark, self.path)

    def _broken(self, name: str) -> PipelineError:
        return PipelineError(
            f"{self.path}: {name} cannot be understood; move the checkpoint away: the archive goes on from what its "
            "tables have"
        )
