"""The choice of a table's proof among its property and the commits of its log. Values only."""

from __future__ import annotations

import json
from dataclasses import replace

from korvet.pipeline.plan.proofs import Commit, Proven, found_in

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
    assert found.told_ms == 5
    alone = found_in(None, 7, [Commit(replace(CLAIM, checkpoint="c", generation=3), 9), Commit(CLAIM, 8)])
    assert alone is not None and (alone.proven.checkpoint, alone.proven.offsets) == ("c", {0: 10})
    # A claim of korvet up to 0.7 has none.
    assert found_in(None, 7, [Commit(replace(CLAIM, offsets={}), 9)]) is None


def test_property_has_what_the_commit_has() -> None:
    assert Proven.from_json(KEPT) == HELD and json.loads(KEPT)["korvet"]["transaction"] == 7
    assert "transaction" not in HELD.to_json()
