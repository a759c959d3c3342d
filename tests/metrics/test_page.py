"""docs/metrics.md has every metric."""

from __future__ import annotations

from tests.support.metrics_page import PAGE, written


def test_page_has_the_table_of_all_metrics() -> None:
    page = PAGE.read_text()
    assert page == written(page), "run python -m tests.support.metrics_page"
