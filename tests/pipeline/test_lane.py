"""One topic of an archive: when its next batch begins, when it is done, and what a failure changes."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any, cast

import pytest

from korvet.pipeline import tries
from korvet.pipeline.archive.schedule import Lane
from korvet.pipeline.errors import Passing, PipelineError
from korvet.pipeline.plan.table import Overtaken
from korvet.pipeline.tries import MOST

NEW = {0: 9}


class Driven:
    """A lane over an archive without Spark, at a clock of its own. It is the lane's pool, and ends batches itself."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, is_endless: bool = False) -> None:
        self.now_s = 0.0
        self.end = 0
        self.begun: list[Mapping[int, int]] = []
        monkeypatch.setattr(tries, "time", SimpleNamespace(monotonic=lambda: self.now_s))
        archive = SimpleNamespace(
            topic="t", is_kept=False, typed_error=None, go_on=None,
            has=lambda ends: self.end >= ends[0], lacks=lambda ends: ends[0] - self.end,
        )  # fmt: skip
        self.lane = Lane(cast(Any, archive), is_endless=is_endless)

    def submit(self, _work: object, ends: Mapping[int, int]) -> Future[bool]:
        self.begun.append(ends)
        return Future()

    def begin(self, *, others_go_on: bool = False) -> bool:
        """Begin a batch; true if one was due."""
        before = len(self.begun)
        self.lane.begin(cast(Any, self), others_go_on=others_go_on)
        return len(self.begun) > before

    def run(self, outcome: int | Exception) -> None:
        """Run a batch that is due: it reaches an offset, or fails."""
        assert self.begin(others_go_on=True)
        assert self.lane.running is not None
        if isinstance(outcome, Exception):
            self.lane.running.set_exception(outcome)
        else:
            self.lane.running.set_result(outcome > self.end)
            self.end = outcome
        self.lane.collect()

    def fail_for_good(self) -> None:
        for _ in range(MOST):
            self.now_s += 60
            self.run(Passing("lost"))


@pytest.fixture
def driven(monkeypatch: pytest.MonkeyPatch) -> Driven:
    return Driven(monkeypatch)


@pytest.fixture
def endless(monkeypatch: pytest.MonkeyPatch) -> Driven:
    return Driven(monkeypatch, is_endless=True)


def test_lane_requests_ends_once_and_begins_one_batch_at_a_time(driven: Driven) -> None:
    lane = driven.lane
    assert (lane.needs_ends, lane.is_alive, driven.begin()) == (True, True, False)
    lane.want(NEW)
    assert (lane.needs_ends, lane.behind) == (False, 9)
    assert [driven.begin(), driven.begin()] == [True, False]
    lane.collect()
    assert (lane.running is None, lane.is_alive, lane.needs_ends) == (False, True, False)


def test_lane_goes_on_to_the_same_ends_until_it_has_them_and_is_over_then(driven: Driven) -> None:
    lane = driven.lane
    lane.want(NEW)
    driven.run(4)
    assert (lane.is_alive, lane.needs_ends, lane.behind) == (True, False, 5)
    driven.run(9)
    assert (lane.is_alive, lane.needs_ends, lane.behind, lane.error) == (False, False, 0, None)
    assert driven.begun == [NEW, NEW] and not driven.begin()


def test_lane_is_over_when_a_batch_finds_nothing_or_the_lake_has_all(driven: Driven) -> None:
    driven.lane.want(NEW)
    driven.run(0)
    assert not driven.lane.is_alive
    other = Lane(driven.lane.archive, is_endless=False)
    driven.end = 9
    other.want(NEW)
    assert (other.is_alive, other.needs_ends, other.behind) == (False, False, 0)


def test_endless_lane_requests_new_ends_after_each_batch(endless: Driven) -> None:
    lane = endless.lane
    for end in (9, 20):
        lane.want({0: end})
        endless.run(end)
        assert (lane.is_alive, lane.needs_ends) == (True, True)
    lane.want({0: 20})
    assert (lane.is_alive, lane.needs_ends, endless.begin()) == (True, True, False)


def test_passing_failure_is_tried_again_after_a_wait_and_stays_after_many(driven: Driven) -> None:
    lane = driven.lane
    lane.want(NEW)
    driven.run(Passing("lost"))
    assert (lane.is_alive, driven.begin()) == (True, False)
    driven.now_s += 1
    driven.run(4)
    assert (lane.error, lane.is_alive) == (None, True)
    driven.fail_for_good()
    driven.now_s += 60
    assert (lane.is_alive, driven.begin(), driven.begin(others_go_on=True)) == (False, False, False)


def test_failure_that_stays_ends_a_lane_at_once(driven: Driven) -> None:
    driven.lane.want(NEW)
    driven.run(PipelineError("no such column"))
    driven.now_s += 60
    assert not driven.lane.is_alive and not driven.begin(others_go_on=True)
    assert str(driven.lane.error) == "no such column"


def test_endless_lane_whose_failure_stays_is_tried_again_only_beside_others(endless: Driven) -> None:
    lane = endless.lane
    lane.want(NEW)
    endless.fail_for_good()
    assert (lane.is_alive, endless.begin(others_go_on=True)) == (False, False)
    endless.now_s += 60
    assert [endless.begin(), endless.begin(others_go_on=True), lane.is_alive] == [False, True, True]
    assert lane.running is not None
    lane.running.set_result(True)
    lane.collect()
    assert (lane.is_alive, lane.error) == (True, None)


def test_overtaken_lane_is_never_tried_again(endless: Driven) -> None:
    endless.lane.want(NEW)
    endless.run(Overtaken("another archive writes"))
    endless.now_s += 60
    assert not endless.begin(others_go_on=True)


def test_missing_answer_about_a_topic_counts_once_for_each_wait(driven: Driven) -> None:
    lane = driven.lane
    for failed in range(MOST):
        assert (failed, lane.is_alive) == (failed, True)
        lane.want(Passing("no answer"))
        lane.want(Passing("no answer"))
        assert lane.needs_ends
        driven.now_s += 60
    assert not lane.is_alive
