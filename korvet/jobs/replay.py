"""``spark-submit replay.py FLAGS``: `korvet pipeline replay` on the session that spark-submit made."""

import sys

from korvet.cli import run

sys.exit(run(["pipeline", "replay", *sys.argv[1:]]))
