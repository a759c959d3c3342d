"""Buckets by numbers: what a client may use at once, and how long it waits for the rest."""

from __future__ import annotations

import pytest

from korvet.quotas.bucket import Bucket, RateLimit
from tests.support.ported import kafka

LIMIT = RateLimit("b", 500.0, 5000.0)


@kafka("ClientQuotaManagerTest.testQuotaViolation")
def test_what_is_over_the_quota_takes_its_time_at_the_quotas_rate() -> None:
    bucket = Bucket(LIMIT, now=0.0)
    for second in range(10):
        bucket.consume(400, second)
        assert bucket.wait_s(second) == 0
    # 5000 may be used at once: it was full again.
    bucket.consume(6300, 9.5)
    assert bucket.wait_s(9.5) == pytest.approx((6300 - 4850) / 500)
    assert bucket.wait_s(9.5 + 2.9) == pytest.approx(0)


def test_use_that_begins_within_the_quota_may_exceed_it() -> None:
    """Kafka's own numbers: ten windows of a second with two mutations a second."""
    bucket = Bucket(RateLimit("m", 2.0, 20.0), now=0.0)
    bucket.consume(30, 0.0)
    assert bucket.wait_s(0.0) == 5.0
    assert bucket.wait_s(4.0) == 1.0
    assert bucket.wait_s(5.0) == 0.0


def test_a_bucket_holds_no_more_than_its_capacity_however_long_it_rests() -> None:
    bucket = Bucket(LIMIT, now=0.0)
    bucket.consume(1, 0.0)
    assert bucket.level(1e9) == 5000.0
    bucket.consume(5001, 1e9)
    assert bucket.wait_s(1e9) == pytest.approx(1 / 500)


def test_the_level_of_all_front_ends_counts_without_what_was_used_since() -> None:
    bucket = Bucket(LIMIT, now=0.0)
    bucket.consume(100, 0.0)
    assert bucket.reported() == 100
    bucket.consume(50, 0.1)
    bucket.heard(-700.0, 0.2)
    assert bucket.level(0.2) == -750.0
    assert bucket.wait_s(0.2) == pytest.approx(1.5)
    assert bucket.reported() == 50 and bucket.reported() == 0


def test_a_share_of_a_quota_is_filled_slower() -> None:
    bucket = Bucket(LIMIT, now=0.0)
    bucket.consume(6000, 0.0)
    assert bucket.wait_s(0.0) == 2.0
    assert bucket.wait_s(0.0, share=0.25) == 8.0
    assert bucket.level(4.0, share=0.25) == -500.0


def test_a_bucket_is_forgotten_only_if_a_new_one_would_be_the_same() -> None:
    bucket = Bucket(LIMIT, now=0.0)
    assert bucket.is_full(0.0)
    bucket.consume(10, 0.0)
    assert not bucket.is_full(1.0)
    bucket.reported()
    assert bucket.is_full(1.0)


def test_clocks_that_go_back_fill_nothing() -> None:
    bucket = Bucket(LIMIT, now=10.0)
    bucket.consume(6000, 10.0)
    assert bucket.level(5.0) == -1000.0
