"""``python -m korvet.server SETTINGS``: a broker whose settings are a JSON argument, for tests without the CLI."""

from __future__ import annotations

import sys

from korvet.server.main import run
from korvet.server.settings import ServeSettings

if __name__ == "__main__":
    sys.exit(run(ServeSettings.from_json(sys.argv[1])))
