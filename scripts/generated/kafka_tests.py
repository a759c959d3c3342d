"""The table of docs/kafka-tests.md: how many cases of each of Kafka's test classes the tests repeat."""

from __future__ import annotations

from collections import Counter
from typing import Final

from tests.support.ported import ported

HEAD: Final = "\n## Repeated\n\n"


def written(page: str) -> str:
    """The page with the current table in the place of its own."""
    counts = Counter(class_name for class_name, _ in {(one.class_name, one.method) for one in ported()})
    rows = "".join(f"| {class_name} | {counts[class_name]} |\n" for class_name in sorted(counts))
    return f"{page.partition(HEAD)[0]}{HEAD}| class | cases |\n|---|---|\n{rows}"
