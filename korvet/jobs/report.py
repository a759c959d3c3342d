"""``spark-submit report.py FLAGS``: `korvet pipeline report` on the session that spark-submit made."""

import sys

from korvet.cli import run

sys.exit(run(["pipeline", "report", *sys.argv[1:]]))
