"""An import error that tests' front-ends meet instead of rich, which structlog takes along for its tracebacks.

A front-end logs without them, and rich is a tenth of its start.
"""

raise ModuleNotFoundError("front-ends do without rich", name="rich")
