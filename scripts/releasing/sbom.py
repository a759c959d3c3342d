"""The software bill of materials of a release, in CycloneDX's JSON: what the image and a clone's set-up consist of.

It names what requirements.lock has, and the files of others that lie in the packages. The hashes are in the lock, one
for each file that an index may have.

Source: CycloneDX 1.5, https://cyclonedx.org/docs/1.5/json/; package URLs, https://github.com/package-url/purl-spec
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

LOCK: Final = "requirements.lock"
_PINNED: Final = re.compile(r"^(?P<name>[a-z0-9-]+)==(?P<version>\S+)", re.MULTILINE)
_VENDORED: Final = {"htmx.org": ("korvet/cli/console/static/htmx.min.js", re.compile(r'version:"([\d.]+)"'))}
"""Files of others by the names of their npm packages, and the place of the version."""


def pinned(lock: str) -> dict[str, str]:
    """The version of each package that a lock names."""
    return {found["name"]: found["version"] for found in _PINNED.finditer(lock)}


def write_sbom(root: Path, version: str, output: Path) -> Path:
    """Write the bill of a version of the clone into ``output``; its path."""
    korvet = {"type": "application", "bom-ref": "korvet", "name": "korvet", "version": version}
    bill = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": {**korvet, "purl": f"pkg:pypi/korvet@{version}"}},
        "components": list(_components(root)),
    }
    path = output / f"korvet-{version}.cdx.json"
    path.write_text(json.dumps(bill, indent=1) + "\n")
    return path


def _components(root: Path) -> Iterator[dict[str, str]]:
    for name, version in pinned((root / LOCK).read_text()).items():
        yield _component("pypi", name, version)
    for name, (file, pattern) in _VENDORED.items():
        found = pattern.search((root / file).read_text())
        assert found is not None
        yield _component("npm", name, found[1])


def _component(kind: str, name: str, version: str) -> dict[str, str]:
    purl = f"pkg:{kind}/{name}@{version}"
    return {"type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl}
