"""``spark-submit archive.py FLAGS``: `korvet pipeline archive` on the session that spark-submit made."""

import sys

from korvet.cli import run

sys.exit(run(["pipeline", "archive", *sys.argv[1:]]))
