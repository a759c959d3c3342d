"""``spark-submit maintain.py FLAGS``: `korvet pipeline maintain` on the session that spark-submit made."""

import sys

from korvet.cli import run

sys.exit(run(["pipeline", "maintain", *sys.argv[1:]]))
