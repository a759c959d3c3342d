"""The part of the config file's schema for ``korvet pipeline``: ``[pipeline]``, and a table in it for each verb.

Keys are the flags' names; those of flags that may be repeated take a list.
"""

from __future__ import annotations

from typing import Any, Final

_TEXT: Final[dict[str, Any]] = {"type": "string", "minLength": 1, "description": "a text"}
_NAMES: Final[dict[str, Any]] = {"type": "array", "items": _TEXT, "description": "a list of names"}
_NUMBER: Final[dict[str, Any]] = {"type": "integer", "minimum": 1, "maximum": 2**63 - 1}
_DURATION: Final[dict[str, Any]] = {
    "type": "string",
    "pattern": r"^\d+(\.\d+)?(ms|s|m|h|d)$",
    "description": 'a duration, for example "10s", "5m" or "7d"',
}
_TIME: Final[dict[str, Any]] = {
    "type": "string",
    "minLength": 2,
    "description": 'a time such as "2026-01-31T12:00:00+01:00", or how long ago, such as "24h"',
}
_OFFSET: Final[dict[str, Any]] = {"type": "integer", "minimum": 0, "maximum": 2**63 - 1}
_OFFSETS: Final[dict[str, Any]] = {
    "type": "array",
    "items": {"type": "string", "pattern": r"^(\d+:)?\d+$", "description": 'an offset, "N" or "PARTITION:N"'},
    "description": "a list of offsets",
}
_BOOLEAN: Final[dict[str, Any]] = {"type": "boolean"}
_SETTINGS: Final[dict[str, Any]] = {
    "type": "object",
    "additionalProperties": {"type": ["string", "number", "boolean"], "description": "a text, a number, true or false"},
}

_VERBS: Final[dict[str, dict[str, Any]]] = {
    "archive": {
        "topics": _NAMES,
        "pattern": _TEXT,
        "every": _DURATION,
        "maintain-every": _DURATION,
        "expire-after": _DURATION,
        "source": {"enum": ["korvet", "kafka"], "default": "korvet"},
        "tier": _TEXT,
        "tier-namespace": {**_TEXT, "default": "default"},
        "starting": {"enum": ["earliest", "latest"], "default": "earliest"},
        "max-offsets-per-trigger": _NUMBER,
        "isolation": {"enum": ["read_committed", "read_uncommitted"], "default": "read_committed"},
        "fail-on-data-loss": {**_BOOLEAN, "default": True},
        "take-over": {**_BOOLEAN, "default": False},
        "table": {"enum": ["latest"]},
        "schema-registry": _TEXT,
        "metrics": {**_TEXT, "description": "HOST:PORT, for example 127.0.0.1:9465"},
        "checkpoints": _TEXT,
        "schemas": {"type": "object", "additionalProperties": {"type": "string", "description": "a file's path"}},
    },
    "replay": {
        "tier": _TEXT,
        "tier-namespace": {**_TEXT, "default": "default"},
        "topic": _TEXT,
        "to": _TEXT,
        "name": _TEXT,
        "rate": {"type": "number", "exclusiveMinimum": 0, "description": "records per second, more than 0"},
        "partitions": {"type": "array", "items": _OFFSET, "description": "a list of numbers"},
        "from-offset": _OFFSETS,
        "to-offset": _OFFSETS,
        "from-time": _TIME,
        "to-time": _TIME,
        "version": _OFFSET,
        "create": {**_BOOLEAN, "default": False},
        "into-archived": {**_BOOLEAN, "default": False},
    },
    "report": {
        "topics": _NAMES,
        "groups": _NAMES,
        "lags": {**_BOOLEAN, "default": True},
        "since": {**_TIME, "default": "24h"},
        "until": _TIME,
        "interval": _DURATION,
        "to": _TEXT,
        "format": {"enum": ["delta", "parquet"], "default": "delta"},
        "html": _TEXT,
    },
    "status": {"topics": _NAMES},
    "retype": {"topic": _TEXT, "schema": _TEXT, "schema-registry": _TEXT},
    "maintain": {
        "topics": _NAMES,
        "retention": {**_DURATION, "default": "168h"},
        "force": {**_BOOLEAN, "default": False},
        "file-size": {**_NUMBER, "default": 128},
        "expire-after": _DURATION,
    },
    "iceberg": {"topics": _NAMES, "catalog": _TEXT, "catalog-name": {**_TEXT, "default": "korvet"}},
}
SETTINGS_TABLES: Final = ("spark", "kafka")
"""Tables whose names have dots, as Spark's and Kafka clients' settings do."""
PATHS: Final = (
    "command-config",
    "lake",
    "archive.checkpoints",
    "archive.tier",
    "replay.tier",
    "report.to",
    "report.html",
    "retype.schema",
)
"""Settings that are paths or URLs: a relative path is taken from the config file's own directory."""

PIPELINE: Final[dict[str, Any]] = {
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "bootstrap-server": {"type": "string", "minLength": 1, "description": "HOST:PORT, for example 127.0.0.1:9092"},
        "command-config": {**_TEXT, "description": "a properties file with a Kafka client's settings"},
        "lake": {**_TEXT, "description": "a directory or a URL"},
        "master": _TEXT,
        "log-format": {"enum": ["text", "json"]},
        **dict.fromkeys(SETTINGS_TABLES, _SETTINGS),
        **{
            name: {"type": "object", "additionalProperties": False, "properties": properties}
            for name, properties in _VERBS.items()
        },
    },
}
