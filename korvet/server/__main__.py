"""``python -m korvet.server SETTINGS``: a broker whose settings are a JSON argument, for tests without the CLI."""

from __future__ import annotations

import sys

from korvet.server.ground.settings import ServeSettings
from korvet.server.processes.main import run

if __name__ == "__main__":
    sys.exit(run(ServeSettings.from_json(sys.argv[1])))
