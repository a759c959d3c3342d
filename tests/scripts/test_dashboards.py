"""The dashboards in deploy/grafana are those of `scripts.dashboards`."""

from __future__ import annotations

import pytest

from scripts.dashboards.__main__ import DASHBOARDS, DIRECTORY


@pytest.mark.parametrize("name", DASHBOARDS)
def test_stored_dashboard_is_the_described_one(name: str) -> None:
    assert (DIRECTORY / name).read_text() == DASHBOARDS[name].json(), "run python -m scripts.dashboards"


def test_directory_has_no_other_dashboards() -> None:
    assert {path.name for path in DIRECTORY.glob("*.json")} == set(DASHBOARDS)
