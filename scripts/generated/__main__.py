"""Write the pages and dashboards that come from the code, or compare them with it: ``scripts/pages [--check]``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Final

from korvet.store.reference import reference
from scripts.generated import bounds, compatibility, kafka_tests, metrics, requests, walks
from scripts.generated.dashboards.boards import DASHBOARDS

ROOT: Final = Path(__file__).resolve().parents[2]


def _of_dashboard(name: str, _: str) -> str:
    return DASHBOARDS[name].json()


PAGES: Final[Mapping[str, Callable[[str], str]]] = {
    "docs/functions.md": lambda _: reference() + "\n",
    "docs/bounds.md": lambda _: bounds.page(),
    "docs/compatibility.md": compatibility.written,
    "docs/kafka-tests.md": kafka_tests.written,
    "docs/metrics.md": metrics.written,
    "docs/request.md": walks.written,
    "korvet/wire/requests.py": requests.written,
    **{f"deploy/grafana/{name}": partial(_of_dashboard, name) for name in DASHBOARDS},
}
"""Path -> what turns the file's text into the current one."""


def stale() -> dict[Path, str]:
    """The files that differ from the code, each with the text that it should have."""
    texts = {ROOT / name: (ROOT / name).read_text() if (ROOT / name).exists() else "" for name in PAGES}
    written = {path: PAGES[path.relative_to(ROOT).as_posix()](text) for path, text in texts.items()}
    return {path: text for path, text in written.items() if text != texts[path]}


def main() -> int:
    """The exit code: 1 if ``--check`` finds a file that differs."""
    parser = argparse.ArgumentParser(prog="scripts/pages", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing, and fail if a file differs")
    only_checks = parser.parse_args().check
    found = stale()
    for path, text in found.items():
        sys.stdout.write(f"{path.relative_to(ROOT)} {'differs' if only_checks else 'written'}\n")
        if not only_checks:
            path.write_text(text)
    return int(only_checks and bool(found))


if __name__ == "__main__":
    sys.exit(main())
