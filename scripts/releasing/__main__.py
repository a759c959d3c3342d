"""Build the release of this clone, and try it as a user would: ``scripts/release [--output DIR]``."""

from __future__ import annotations

import argparse
import hashlib
import subprocess
import sys
import tempfile
from pathlib import Path

from scripts.releasing.build import ReleaseError, agreed_version, build, is_clean, is_proven
from scripts.releasing.sbom import write_sbom
from scripts.releasing.trial import install, try_out

ROOT = Path(__file__).resolve().parents[2]


def main() -> int:
    """The exit code: 0 if the release is whole and works, else 1 with one line that says why."""
    parser = argparse.ArgumentParser(prog="scripts/release", description=__doc__)
    parser.add_argument("--output", type=Path, default=ROOT / "dist", help="directory of the packages (default: dist)")
    parser.add_argument("--uncommitted", action="store_true", help="build the work tree with its uncommitted changes")
    parser.add_argument("--unproven", action="store_true", help="build a wheel of your own, whatever tests passed here")
    options = parser.parse_args()
    try:
        for line in release(options.output.absolute(), uncommitted=options.uncommitted, unproven=options.unproven):
            sys.stdout.write(f"{line}\n")
    except ReleaseError as error:
        sys.stderr.write(f"release: {error}\n")
        return 1
    except subprocess.CalledProcessError as error:
        command = " ".join(map(str, error.cmd))
        sys.stderr.write(f"{error.stdout or ''}{error.stderr or ''}release: {command} failed\n")
        return 1
    return 0


def release(output: Path, *, uncommitted: bool, unproven: bool) -> list[str]:
    """Build into ``output`` and try the wheel; the lines of packages and bill for a list of checksums.

    :raises ReleaseError: the tree has changes or is not proven, versions disagree, or the wheel does not work.
    :raises CalledProcessError: a tool failed.
    """
    version = agreed_version(ROOT)
    if not uncommitted and not is_clean(ROOT):
        raise ReleaseError("the work tree has uncommitted changes; commit them, or give --uncommitted for a trial")
    if not (uncommitted or unproven or is_proven(ROOT)):
        raise ReleaseError(
            "this commit has not passed ./scripts/test all in this clone; run that, or give --unproven for a wheel of "
            "your own"
        )
    packages = build(ROOT, output)
    with tempfile.TemporaryDirectory(prefix="korvet-release-") as name:
        directory = Path(name)
        try_out(install(packages.wheel, directory), directory, version)
    made = (packages.sdist, packages.wheel, write_sbom(ROOT, version, output))
    return [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path}" for path in made]


if __name__ == "__main__":
    sys.exit(main())
