"""Pages are wrapped, and links in them and in the alert rules lead to files and headings that are there."""

from __future__ import annotations

import re
import subprocess
from functools import cache
from pathlib import Path

import pytest
import yaml

from tests.support.prometheus import RULES

ROOT = Path(__file__).resolve().parents[2]
CODE = re.compile(r"```.*?```|^    .*?$|`[^`\n]+`", re.DOTALL | re.MULTILINE)
BLOCK = re.compile(r"```.*?```|^    .*?$|^\|.*?$", re.DOTALL | re.MULTILINE)
"""Code and rows of tables, whose lines may be long."""
LINE = 120
LINK = re.compile(r"\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ +(.+)$", re.MULTILINE)
ELSEWHERE = ("http://", "https://", "mailto:")


@cache
def headings(page: Path) -> set[str]:
    """The anchors of a page's headings, as forges make them."""
    titles = (re.sub(r"[`*]|\]\([^)]*\)|\[", "", title) for title in HEADING.findall(page.read_text()))
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def is_there(link: str, page: Path) -> bool:
    path, _, anchor = link.partition("#")
    target = (page.parent / path).resolve() if path else page
    return target.exists() and (not anchor or anchor in headings(target))


def pages() -> list[Path]:
    """The pages that git knows, or would take."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    return [ROOT / line for line in listed.splitlines()]


def test_prose_of_all_pages_is_wrapped() -> None:
    lines = [(page, line) for page in pages() for line in BLOCK.sub("", page.read_text()).splitlines()]
    assert len(lines) > 1000
    assert [f"{page.relative_to(ROOT)}: {line}" for page, line in lines if len(line) > LINE] == []


def test_links_of_all_pages_lead_somewhere() -> None:
    found = [(page, link) for page in pages() for link in LINK.findall(CODE.sub("", page.read_text()))]
    inside = [(page, link) for page, link in found if not link.startswith(ELSEWHERE)]
    assert len(inside) > 100
    assert [f"{page.relative_to(ROOT)}: {link}" for page, link in inside if not is_there(link, page)] == []


def test_every_alert_links_to_its_remedy() -> None:
    rules = [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]
    assert len(rules) > 15
    for rule in rules:
        assert rule["annotations"]["runbook_url"] == f"docs/troubleshooting.md#{rule['alert'].lower()}"
        assert is_there(rule["annotations"]["runbook_url"], ROOT / "README.md")


@pytest.mark.parametrize(
    "link, there", [("README.md", True), ("#development", True), ("README.md#no-such", False), ("NO.md", False)]
)
def test_links_are_judged(link: str, there: bool) -> None:
    assert is_there(link, ROOT / "README.md") is there
