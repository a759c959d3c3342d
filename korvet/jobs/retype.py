"""``spark-submit retype.py FLAGS``: `korvet pipeline retype` on the session that spark-submit made."""

import sys

from korvet.cli import run

sys.exit(run(["pipeline", "retype", *sys.argv[1:]]))
