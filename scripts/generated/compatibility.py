"""The tables of docs/compatibility.md, between its markers, from the tables that the oracle obeys."""

import re

from tests.oracle.differences import DIFFERENCES, FREE
from tests.oracle.versions import ADVERTISED, API_KEYS


def _camel(api: str) -> str:
    return "".join(word.capitalize() for word in api.split("_")) if api != "*" else "any"


def _table(*rows: tuple[str, ...]) -> str:
    header, *body = rows
    lines = [header, tuple("---" for _ in header), *body]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _range(low: int, high: int) -> str:
    return str(low) if low == high else f"{low}-{high}"


def tables() -> dict[str, str]:
    """The page's tables by the names of their markers."""
    apis = sorted(ADVERTISED, key=API_KEYS.__getitem__)
    versions = [(_camel(api), str(API_KEYS[api]), _range(*ADVERTISED[api])) for api in apis]
    different = [
        (
            _camel(row.api),
            "whole answer" if row.path == "answer" else f"`{row.path}`" + (" (more)" if row.extra else ""),
            "everywhere" if row.script == "*" else f"scripts `{row.script}`",
            row.reason,
        )
        for row in DIFFERENCES
    ]
    free = [(", ".join(f"`{name}`" for name in row.fields), row.compared, row.reason) for row in FREE]
    return {
        "apis": _table(("API", "key", "versions"), *versions),
        "differences": _table(("API", "field", "where", "why"), *different),
        "free": _table(("fields", "compared", "why"), *free),
    }


def written(text: str) -> str:
    """The page with the current table at every marker. Raises ValueError for a missing marker."""
    for name, table in tables().items():
        marked = re.compile(rf"(<!-- {name} -->\n\n).*?(\n\n<!-- end -->)", re.DOTALL)
        if not marked.search(text):
            raise ValueError(f"docs/compatibility.md has no table marked {name}")
        text = marked.sub(lambda match, table=table: match[1] + table + match[2], text)  # type: ignore[misc]
    return text
