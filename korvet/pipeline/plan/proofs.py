"""Proofs: the offsets of its topic that a table holds, by its own Delta log.

Each commit of an archive has in Delta's ``userMetadata`` the offsets below which the table then holds everything. The
newest such commit counts: other commits in between, such as OPTIMIZE, change no rows. A RESTORE leads to the
commits up to the version that it restored.

Delta deletes commits after 30 days. So if nobody writes to a table, its proof is kept as the table's `PROPERTY`
too, which every snapshot has. It counts while the last transaction that it names is the table's last one; transactions
are in every snapshot, too. A RESTORE takes properties back with the rows, but neither transactions nor metadata of
domains, so these could not lead to a proof. A property cannot be set in a commit with rows, so that each batch would
need a second commit. Without either the proof is unknown, and never guessed from rows: these may have
expired, and say nothing of a place where an archive began at the end.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final, NamedTuple, Self

from korvet.pipeline.errors import PipelineError
from korvet.pipeline.plan.losses import Loss

APPLICATION: Final = "korvet.archive/"
"""The prefix of the application ids of Delta's transactions; the topic's id follows."""
PROPERTY: Final = "korvet.proof"
"""The property with a table's proof, which outlives the proof's commit."""
KEEP_AFTER_S: Final = 3600.0
"""The age at which a commit's proof is copied to the property. A busy table's newest commit is never so old."""
_NO_TRANSACTION: Final = -1
_VERSION: Final = 1
Ranges = Mapping[int, tuple[int, int]]
"""Offsets by partition: begin, and end without it."""
GENERATION_BITS: Final = 32
"""The low bits of a transaction's version, which hold the batch's number; the generation is above them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proven:
    """Everything of the topic below ``offsets``, by partition, is in the table.

    ``leader_epochs`` are of the archived history. ``generation`` counts the archives that have written to the table.
    ``checkpoint`` is the id of the last one, ``batch_id`` the number of its batch, -1 before its first. A claim
    begins a generation with the offsets of the commits before it, which count while they are there. ``losses`` are
    exceptions: offsets that the archive went on without. ``rows`` counts the rows of the last batch, if known.
    """

    topic: str
    topic_id: str
    generation: int
    batch_id: int
    offsets: Mapping[int, int]
    leader_epochs: Mapping[int, int] = field(default_factory=dict)
    checkpoint: str = ""
    is_claim: bool = False
    losses: tuple[Loss, ...] = ()
    rows: int = field(default=0, compare=False)

    @property
    def transaction_version(self) -> int:
        """The version of Delta's transaction, which grows with each batch and each generation."""
        return self.generation << GENERATION_BITS | (self.batch_id + 1)

    def to_json(self, transaction: int | None = None) -> str:
        """The text for ``userMetadata``; for the property with the version of the table's last transaction."""
        fields = {
            **({} if transaction is None else {"transaction": transaction}),
            "version": _VERSION,
            "topic": self.topic,
            "topic_id": self.topic_id,
            "generation": self.generation,
            "batch_id": self.batch_id,
            "offsets": {str(number): offset for number, offset in sorted(self.offsets.items())},
            "leader_epochs": {str(number): epoch for number, epoch in sorted(self.leader_epochs.items())},
            "checkpoint": self.checkpoint,
            "claim": self.is_claim,
            "losses": [asdict(loss) for loss in self.losses],
        }
        return json.dumps({"korvet": fields})

    @classmethod
    def from_json(cls, text: str) -> Self | None:
        """The proof in a text of ``userMetadata``; None if no archive wrote it."""
        try:
            fields = json.loads(text)["korvet"]
        except (ValueError, KeyError, TypeError):
            return None
        return cls(
            topic=fields["topic"],
            topic_id=fields["topic_id"],
            generation=fields["generation"],
            batch_id=fields["batch_id"],
            offsets={int(number): offset for number, offset in fields["offsets"].items()},
            leader_epochs={int(number): epoch for number, epoch in fields["leader_epochs"].items()},
            checkpoint=fields["checkpoint"],
            is_claim=fields["claim"],
            losses=tuple(Loss(**loss) for loss in fields.get("losses", [])),
        )


def lacking(has: Proven, raw: Proven) -> dict[int, tuple[int, int]]:
    """The offsets that a table lacks of the raw one."""
    begins = {number: has.offsets.get(number, 0) for number in raw.offsets}
    return {number: (begins[number], end) for number, end in raw.offsets.items() if end > begins[number]}


def had(has: Proven, raw: Proven) -> dict[int, tuple[int, int]]:
    """The offsets that a table has of the raw one, from 0 on."""
    ends = {number: min(has.offsets.get(number, 0), end) for number, end in raw.offsets.items()}
    return {number: (0, end) for number, end in ends.items() if end}


def followed(has: Proven | None, raw: Proven, writer: str) -> Proven:
    """The proof of a table that has got all that the raw one has. It is no lower than before, if the raw one is."""
    before = {} if has is None else has.offsets
    ahead = {number: offset for number, offset in before.items() if offset > raw.offsets.get(number, -1)}
    epochs = {number: epoch for number, epoch in raw.leader_epochs.items() if number not in ahead}
    if has is not None:
        epochs |= {number: epoch for number, epoch in has.leader_epochs.items() if number in ahead}
    return replace(raw, offsets={**raw.offsets, **ahead}, leader_epochs=epochs, checkpoint=writer, is_claim=False)


def within(ranges: Ranges) -> str:
    """A condition of SQL on the columns ``partition`` and ``offset``; false of no ranges."""
    condition = " or ".join(
        f"(partition = {number} and offset >= {begin} and offset < {end})" for number, (begin, end) in ranges.items()
    )
    return condition or "false"


class Unproven(PipelineError):
    """A table of an archive no longer says what it holds."""


class Found(NamedTuple):
    """A proof, and where it was."""

    proven: Proven
    is_property: bool
    committed_ms: int
    """The time of the commit with the offsets, in ms since 1970; 0 for a property."""


class Commit(NamedTuple):
    """A commit of an archive."""

    proven: Proven
    time_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A table in Delta's words, as it is now.

    :param version: of its newest commit.
    :param kept: the text of its `PROPERTY`, if it has one.
    :param transactions: application id -> version of its last transaction.
    """

    version: int
    kept: str | None
    transactions: Mapping[str, int]

    @property
    def last(self) -> tuple[str, int] | None:
        """The application id and the version of the last transaction of an archive."""
        ours = {name: version for name, version in self.transactions.items() if name.startswith(APPLICATION)}
        return max(ours.items(), key=lambda each: each[1], default=None)

    @property
    def transaction(self) -> int:
        """The version of that transaction."""
        return _NO_TRANSACTION if self.last is None else self.last[1]


def find(snapshot: Snapshot, read: Callable[[int], str | None], table: str, uri: Callable[[], str]) -> Found | None:
    """The proof of a table; None if no archive has written to it.

    :param read: gives the text of the commit of a version, None if it is gone.
    :param table: the table's path; ``uri`` gives the same for a statement of SQL.
    :raises Unproven: if an archive has, and the proof is gone.
    """
    found = found_in(snapshot.kept, snapshot.transaction, commits(read, snapshot.version))
    if found is not None or snapshot.last is None:
        return found
    application, version = snapshot.last
    proven = Proven(
        topic=table.rstrip("/").split("/")[-2],
        topic_id=application.removeprefix(APPLICATION),
        generation=version >> GENERATION_BITS,
        batch_id=(version & ((1 << GENERATION_BITS) - 1)) - 1,
        offsets={0: 0},
    )
    raise Unproven(
        f"{table}: its log no longer says up to which offsets it is complete, since Delta deleted the commits "
        "that did. Move the topic's directory away and archive the topic anew, or, if you know the next offset of each "
        f"partition, write these into: {statement(uri(), proven.to_json(version))}"
    )


def found_in(kept: str | None, transaction: int, commits: Iterable[Commit]) -> Found | None:
    """The proof of a table; None if it is unknown.

    :param kept: the property, if there is one.
    :param transaction: the version of the table's last transaction.
    :param commits: the archives' commits, the newest first, as far as the log has them.
    """
    proven = None if kept is None else Proven.from_json(kept)
    if proven is not None and json.loads(kept or "")["korvet"].get("transaction") == transaction:
        return Found(proven, True, 0)
    newest = claim = None
    for commit in commits:
        newest = newest or commit
        if not commit.proven.is_claim:
            return _merged(newest, commit)
        claim = claim or commit
    # The claim has the proof of the commits before it.
    return None if newest is None or claim is None or not claim.proven.offsets else _merged(newest, claim)


def _merged(newest: Commit, holds: Commit) -> Found:
    proven = replace(
        newest.proven,
        offsets=holds.proven.offsets,
        leader_epochs=holds.proven.leader_epochs,
        losses=holds.proven.losses,
        is_claim=False,
    )
    return Found(proven, False, holds.time_ms)


def commits(read: Callable[[int], str | None], version: int) -> Iterator[Commit]:
    """The commits of archives from a version back, up to the first that is gone."""
    while version >= 0:
        text = read(version)
        if text is None:
            return
        commit = _commit_info(text)
        found = Proven.from_json(commit.get("userMetadata", ""))
        if found is not None:
            found = replace(found, rows=int(commit.get("operationMetrics", {}).get("numOutputRows", 0)))
            yield Commit(found, int(commit.get("timestamp", 0)))
        version = _before(commit, version)


def must_be_kept(found: Found, now_s: float) -> bool:
    """True if the property must hold the proof, too: the proof's commit is older than `KEEP_AFTER_S`."""
    # A commit of the future is of a clock that was wrong.
    return not found.is_property and abs(now_s - found.committed_ms / 1000) >= KEEP_AFTER_S


def statement(uri: str, text: str) -> str:
    """The statement of SQL that makes a text the table's property."""
    path, value = uri.replace("`", "``"), text.replace("\\", "\\\\").replace("'", "\\'")
    return f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES ('{PROPERTY}' = '{value}')"


def _before(commit: Mapping[str, Any], version: int) -> int:
    """The version to look at next: the restored one if the commit is a RESTORE, else the one before."""
    if commit.get("operation") != "RESTORE":
        return version - 1
    restored = commit.get("operationParameters", {}).get("version")
    # A RESTORE by time does not name its version.
    return -1 if restored is None else int(restored)


def _commit_info(text: str) -> Mapping[str, Any]:
    for line in text.splitlines():
        if line.startswith('{"commitInfo"'):
            found: Mapping[str, Any] = json.loads(line)["commitInfo"]
            return found
    return {}
