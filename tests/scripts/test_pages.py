"""The pages and dashboards that are written from the code, and the pictures of the pages."""

from __future__ import annotations

import pytest

from scripts.generated.__main__ import PAGES, ROOT


@pytest.mark.parametrize("name", PAGES)
def test_stored_page_is_the_written_one(name: str) -> None:
    stored = (ROOT / name).read_text()
    assert stored == PAGES[name](stored), "run ./scripts/pages"


def test_every_dashboard_is_a_written_one() -> None:
    assert {path.relative_to(ROOT).as_posix() for path in (ROOT / "deploy" / "grafana").glob("*.json")} <= set(PAGES)


def test_pages_show_every_picture() -> None:
    pages = "".join(page.read_text() for page in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")))
    files = sorted(path.name for path in (ROOT / "docs" / "images").iterdir())
    assert files
    assert [name for name in files if f"images/{name})" not in pages] == []
