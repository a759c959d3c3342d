"""The pictures of the documentation are drawn from `scripts.pictures`, and the pages show them."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from scripts.pictures.__main__ import IMAGES, PICTURES


@pytest.mark.parametrize("name", PICTURES)
def test_stored_picture_is_the_drawn_one(name: str) -> None:
    assert (IMAGES / name).read_text() == PICTURES[name].svg(), "run python -m scripts.pictures"


def test_pages_show_every_picture() -> None:
    docs = IMAGES.parent
    pages = "".join(page.read_text() for page in (docs.parent / "README.md", *docs.glob("*.md")))
    files = sorted(path.name for path in IMAGES.iterdir())
    assert files
    assert [name for name in files if f"images/{name})" not in pages] == []


@pytest.mark.parametrize("path", sorted(IMAGES.glob("*.svg")), ids=lambda path: path.name)
def test_picture_has_a_title_and_colours_for_dark_pages(path: Path) -> None:
    text = path.read_text()
    title = ElementTree.fromstring(text).find("{http://www.w3.org/2000/svg}title")
    assert title is not None
    assert title.text
    assert "@media (prefers-color-scheme: dark)" in text
