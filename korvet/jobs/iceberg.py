"""``spark-submit iceberg.py FLAGS``: `korvet pipeline iceberg` on the session that spark-submit made."""

import sys

from korvet.cli import run

sys.exit(run(["pipeline", "iceberg", *sys.argv[1:]]))
