"""A table of the lake as one archive writes it: every batch once, and never two archives at a time.

All archives of a topic write under one of Delta's application ids. Each commit's transaction version is above all
versions before it. Its high bits are the generation, which grows with each archive that begins; its low bits are the
batch's number. Delta skips a commit whose version is not above the last, and lets one of two concurrent commits fail.
So Delta skips nothing although each archive counts its batches from 0. An archive that a new generation has overtaken
writes nothing more: it does not find its own proof in the log. The generation is not in the application id, because
Delta would let generations of different ids write side by side. One commit makes a new table, and one of two archives
wins it.

Four methods stand for the table's log. `korvet.pipeline.lake.table` has them for Delta.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace
from typing import Final, Generic, Literal, TypeVar

from korvet.pipeline.errors import PipelineError
from korvet.pipeline.plan.proofs import APPLICATION, GENERATION_BITS, Proven

Rows = TypeVar("Rows")
How = Literal["make", "append", "replace", "merge"]
"""A commit makes the table, appends its rows, replaces all rows by them, or replaces the rows with the same keys."""

RETYPING: Final = "retyping"
"""The id in the claim on a table that will be replaced, which an archive may not claim."""
_CLAIMS: Final = 10
_TRIES: Final = 5


class Overtaken(PipelineError):
    """Another archive writes to the same table."""


class Conflict(Exception):
    """Another commit came between the read of the table and the commit."""


class ProvenTable(ABC, Generic[Rows]):
    """One table, as one archive writes it. ``proven`` is its proof; None before the first write.

    :raises PipelineError: if there is a table that no archive wrote.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.proven = self._read()
        self._exists = self.proven is not None
        if not self._exists and self._is_there():
            raise PipelineError(f"{path}: this table was not written by an archive; move it, or name another lake")

    @abstractmethod
    def _read(self) -> Proven | None:
        """The proof in the log; None if there is no table, or no archive has written to it."""

    @abstractmethod
    def _is_there(self) -> bool:
        """True if there is a table."""

    @abstractmethod
    def _last_transaction(self, application: str) -> int | None:
        """The version of the application's last transaction."""

    @abstractmethod
    def _save(self, rows: Rows | None, proven: Proven, how: How) -> None:
        """Commit rows, None for none, with a proof; do nothing if its transaction version is not above the last.

        :raises Conflict: if that was not possible because of another commit.
        """

    def next_offset(self, partition: int) -> int:
        """The offset below which the table holds everything of the partition."""
        return 0 if self.proven is None else self.proven.offsets.get(partition, 0)

    def claim(self, topic: str, topic_id: str, checkpoint: str) -> None:
        """Begin a generation: no other archive can write from then on. Reads the proof again.

        The claim has the proof's offsets, since Delta may delete the commits before it. They are from before the claim,
        so the table is claimed again if another archive wrote in between.

        :raises Overtaken: if other archives claim it all the time.
        :raises PipelineError: also if the table is marked as `RETYPING`, and the claim is not such a mark.
        """
        if not self._exists:
            return
        for _ in range(_CLAIMS):
            generation = self._next_generation(topic_id)
            # This comes later: a mark that is not there yet would take the generation.
            before = self._unmarked(topic, checkpoint)
            claim = replace(
                before,
                topic=topic,
                topic_id=topic_id,
                generation=generation,
                batch_id=-1,
                checkpoint=checkpoint,
                is_claim=True,
            )
            try:
                self._write(None, claim)
            except Overtaken:
                continue
            found = self._present()
            if found.checkpoint == checkpoint and found.offsets == before.offsets:
                self.proven = found
                return
        raise self._overtaken()

    def append(self, rows: Rows, proven: Proven) -> int:
        """Add the rows of a batch, with the proof of the table after it; returns their number.

        :param proven: its generation and batch number are replaced by the table's next ones.
        :raises Overtaken: if another archive claimed the table; this one then writes nothing.
        :raises PipelineError:
        """
        return self._add(rows, proven, "append")

    def next_proof(self, proven: Proven) -> Proven:
        """The proof with the numbers of the table's next batch."""
        if self.proven is None:
            return replace(proven, generation=1, batch_id=0)
        return replace(proven, generation=self.proven.generation, batch_id=self.proven.batch_id + 1)

    def replace(self, rows: Rows, proven: Proven) -> int:
        """Replace all rows and columns in one commit, which begins the next generation; returns the rows' number.

        :raises Overtaken: if another archive claimed the table; its rows then stay.
        :raises PipelineError:
        """
        assert self.proven is not None
        proven = replace(proven, generation=self.proven.generation + 1, batch_id=-1)
        self._write(rows, proven, "replace")
        return self._written(proven)

    def reset(self, proven: Proven) -> None:
        """Replace the proof by a lower one, since the topic has lost the rest; the rows stay.

        :raises PipelineError:
        """
        if self._exists:
            proven = replace(proven, generation=self._next_generation(proven.topic_id), batch_id=-1, checkpoint="")
            self._write(None, proven)
            self.proven = proven

    def _unmarked(self, topic: str, checkpoint: str) -> Proven:
        """The table's proof now.

        :raises PipelineError: if a retype has marked the table.
        """
        found = self._present()
        if found.checkpoint == RETYPING != checkpoint:
            raise PipelineError(
                f"topic {topic}: 'korvet pipeline retype' runs, or was cut off; wait for its end, or run it again"
            )
        return found

    def _present(self) -> Proven:
        """The proof of the table, which exists."""
        found = self._read()
        if found is None:
            raise self._deleted()
        return found

    def _next_generation(self, topic_id: str) -> int:
        last = self._last_transaction(APPLICATION + topic_id) or 0
        return (last >> GENERATION_BITS) + 1

    def _add(self, rows: Rows, proven: Proven, how: How) -> int:
        proven = self.next_proof(proven)
        self._write(rows, proven, how)
        self._exists = True
        return self._written(proven)

    def _written(self, proven: Proven) -> int:
        """The number of the rows that were just written with this proof. Delta skips them if another has claimed."""
        found = self._read()
        if found != proven:
            raise self._overtaken()
        self.proven = found
        return 0 if found is None else found.rows

    def _write(self, rows: Rows | None, proven: Proven, how: How = "append") -> None:
        if self._exists and not self._is_there():
            raise self._deleted()
        for left in reversed(range(_TRIES)):
            try:
                return self._save(rows, proven, how if self._exists else "make")
            except Conflict:
                found = self._read()
                # It may be this one: an object store refuses a commit that it has already, if its answer was lost.
                if found == proven:
                    return
                # Else somebody set a property, or maintenance compacted files or keeps the proof.
                if not left or found != self.proven:
                    raise self._overtaken() from None

    def _deleted(self) -> PipelineError:
        return PipelineError(f"{self.path}: the table was deleted; end the archive, and start it again")

    def _overtaken(self) -> Overtaken:
        return Overtaken(
            f"{self.path}: another archive writes to this table, or a retype does; let only one of them run"
        )
