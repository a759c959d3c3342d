"""The options of ``format("korvet")``."""

from __future__ import annotations

from korvet.pipeline.source.client import client_settings as client_settings
