"""The choice of a table's proof among its property and the commits of its log. Values only."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from korvet.pipeline.plan.proofs import (
    APPLICATION,
    KEEP_AFTER_S,
    Commit,
    Found,
    Proven,
    Snapshot,
    Unproven,
    commits,
    find,
    found_in,
    must_be_kept,
)

HELD = Proven(topic="t", topic_id="id", generation=1, batch_id=4, offsets={0: 10}, leader_epochs={0: 2}, checkpoint="a")
CLAIM = replace(HELD, generation=2, batch_id=-1, checkpoint="b", is_claim=True)
KEPT = HELD.to_json(7)


def test_property_counts_while_the_table_has_no_later_transaction() -> None:
    later = Commit(replace(HELD, offsets={0: 11}, batch_id=5), 99)
    assert found_in(KEPT, 7, [later]) == (HELD, True, 0)
    assert found_in(KEPT, 8, [later]) == (later.proven, False, 99)
    assert found_in(KEPT, 8, []) is None
    assert found_in("{}", 7, []) is None and found_in(None, 7, []) is None


def test_claim_counts_with_the_offsets_before_it_or_its_own_if_these_are_gone() -> None:
    held = Commit(replace(HELD, offsets={0: 12}), 5)
    found = found_in(None, 7, [Commit(CLAIM, 9), held])
    assert found is not None
    assert (found.proven.checkpoint, found.proven.offsets, found.proven.is_claim) == ("b", {0: 12}, False)
    # Its age is that of the offsets.
    assert found.committed_ms == 5
    alone = found_in(None, 7, [Commit(replace(CLAIM, checkpoint="c", generation=3), 9), Commit(CLAIM, 8)])
    assert alone is not None and (alone.proven.checkpoint, alone.proven.offsets) == ("c", {0: 10})
    # A claim of korvet up to 0.7 has none.
    assert found_in(None, 7, [Commit(replace(CLAIM, offsets={}), 9)]) is None


def log(*commits: dict[str, Any]) -> Callable[[int], str | None]:
    """Reads commits of a table's log by their versions; the first is gone if it is empty."""
    texts = [json.dumps({"commitInfo": each}) + '\n{"metaData": {}}' if each else None for each in commits]
    return lambda version: texts[version] if version < len(texts) else None


def test_proof_is_that_of_the_newest_commit_and_of_the_version_that_was_restored() -> None:
    first = {"timestamp": 1, "userMetadata": HELD.to_json(), "operationMetrics": {"numOutputRows": "3"}}
    second = {"timestamp": 2, "userMetadata": replace(HELD, batch_id=5, offsets={0: 20}).to_json()}
    other = {"timestamp": 3, "operation": "OPTIMIZE", "userMetadata": "of somebody else"}
    restored = {"operation": "RESTORE", "operationParameters": {"version": "0"}}
    read = log(first, second, other, restored, {"operation": "RESTORE", "operationParameters": {"timestamp": "x"}})
    assert [each.time_ms for each in commits(read, 2)] == [2, 1]
    assert list(commits(read, 3)) == list(commits(read, 0)) == [Commit(HELD, 1)]
    assert next(commits(read, 0)).proven.rows == 3
    # That of a time does not tell its version, and what is before a commit that is gone is not known.
    assert list(commits(read, 4)) == [] and len(list(commits(log({}, second), 1))) == 1


def test_error_of_a_table_whose_proof_is_gone_says_how_to_mend_it() -> None:
    def of(last: int | None) -> Snapshot:
        transactions = {"other": 99} if last is None else {"other": 99, f"{APPLICATION}id": last}
        return Snapshot(version=0, kept=KEPT, transactions=transactions)

    assert find(of(7), log({}), "/lake/t/raw", str) == (HELD, True, 0)
    assert find(of(None), log({}), "/lake/t/raw", str) is None
    with pytest.raises(Unproven, match=r"ALTER TABLE delta.`file:///o'k/``t` SET TBLPROPERTIES") as told:
        find(of(HELD.transaction_version), log({}), "/lake/t/raw", lambda: "file:///o'k/`t")
    text = str(told.value).partition("'korvet.proof' = '")[2].removesuffix("')")
    mended = Proven.from_json(text)
    assert mended == replace(HELD, offsets={0: 0}, leader_epochs={}, checkpoint="")
    assert find(replace(of(HELD.transaction_version), kept=text), log({}), "/lake/t/raw", str) == (mended, True, 0)


def test_proof_is_kept_beside_its_commit_before_delta_deletes_that() -> None:
    now_s = 10_000_000.0
    ages = {KEEP_AFTER_S - 1: False, KEEP_AFTER_S: True, -KEEP_AFTER_S: True}
    for age_s, expected in ages.items():
        assert must_be_kept(Found(HELD, False, round((now_s - age_s) * 1000)), now_s) == expected
    assert not must_be_kept(Found(HELD, True, 0), now_s)


def test_property_has_what_the_commit_has() -> None:
    assert Proven.from_json(KEPT) == HELD and json.loads(KEPT)["korvet"]["transaction"] == 7
    assert "transaction" not in HELD.to_json()
