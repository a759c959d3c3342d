"""The table of docs/metrics.md."""

from __future__ import annotations

from typing import Final

from korvet.metrics.families import FAMILIES, Family

_HEAD: Final = "| metric | kind | labels | meaning | Kafka's JMX name |\n|---|---|---|---|---|\n"
_BEHIND: Final = "\n## "


def table() -> str:
    """The table, a row for each metric."""
    return _HEAD + "".join(map(_row, FAMILIES.values()))


def _row(family: Family) -> str:
    labels = ", ".join(f"`{label}`" for label in family.labels)
    jmx = " ".join(f"`{name}`" for name in family.jmx.split("; ") if name)
    return f"| `{family.name}` | {family.kind} | {labels} | {family.text} | {jmx} |\n"


def written(page: str) -> str:
    """The page with this table in the place of its own."""
    before, _, rest = page.partition(_HEAD)
    return before + table() + rest[rest.index(_BEHIND) :]
