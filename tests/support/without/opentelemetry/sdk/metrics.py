"""An import error that tests' front-ends meet instead of OpenTelemetry's metrics, which few users have.

The client of Redis takes them along if they are there, which is a tenth of a front-end's start.
"""

raise ModuleNotFoundError("front-ends do without OpenTelemetry's metrics", name="opentelemetry.sdk.metrics")
