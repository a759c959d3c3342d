"""The JSON Schema of the config file.

``[serve]`` is for the flags, ``[[listener]]`` for each of several listeners, ``[broker]`` for Kafka's own settings;
``[pipeline]`` is for the flags of ``korvet pipeline``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from korvet.configs.brokers import BROKER_CONFIGS
from korvet.configs.listeners import PATTERN as OF_LISTENERS
from korvet.configs.types import Config, Kind
from korvet.security.protocol import MECHANISMS, NAMES, ClientAuth, NamespaceFrom, Security
from korvet.security.tls import CIPHER_SUITES, PROTOCOLS
from korvet.settings.choices import CONSOLES, LOG_FORMATS, LOG_LEVELS
from korvet.settings.pipeline import PIPELINE
from korvet.store.registry import DEFAULT_LISTENER

_ADDRESS = {
    "type": "string",
    "pattern": r"^(\[[^\]]+\]|[^:\s]*):\d{1,5}$",
    "description": "HOST:PORT, for example 127.0.0.1:9092",
}
_ADVERTISED = {
    "type": "string",
    "pattern": r"^(\[[^\]]+\]|[^:\s]*):\d{1,5}(-\d{1,5})?$",
    "description": "HOST:PORT or HOST:PORT-PORT, for example kafka.example:9092-9097",
}


def _some_of(names: Iterable[str], example: str, what: str = "names") -> dict[str, Any]:
    return {
        "type": "array",
        "items": {"enum": list(names)},
        "minItems": 1,
        "uniqueItems": True,
        "description": f"a list of different {what}, for example {example}",
    }


_FILE = {"type": "string", "description": "a file in PEM", "minLength": 1}
_LISTENER = {
    "listen": {**_ADDRESS, "default": "127.0.0.1:9092"},
    "advertised": _ADVERTISED,
    "namespace": {"type": "string", "description": "a name", "minLength": 1, "maxLength": 128, "default": "default"},
    "namespace-from": {"enum": [one.value for one in NamespaceFrom]},
    "name": {
        "type": "string",
        "description": "a name of letters, digits, '_', '.' and '-'",
        "pattern": r"^[A-Za-z0-9_.-]{1,64}$",
        "default": DEFAULT_LISTENER,
    },
    "proxy-protocol": {"type": "boolean", "default": False},
    "proxy-protocol-from": {
        "type": "array",
        "items": {"type": "string", "minLength": 1},
        "minItems": 1,
        "description": 'a list of addresses and networks, for example ["10.0.0.0/24"]',
    },
    "security": {"enum": list(NAMES), "default": Security.PLAINTEXT.value},
    "tls-cert": _FILE,
    "tls-key": _FILE,
    "tls-client-ca": _FILE,
    "tls-client-auth": {"enum": [one.value for one in ClientAuth], "default": ClientAuth.NONE.value},
    "tls-client-crl": _FILE,
    "tls-protocols": _some_of(PROTOCOLS, '["TLSv1.3"]'),
    "tls-cipher-suites": _some_of(CIPHER_SUITES, '["TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384"]'),
    "tls-terminated": {"type": "boolean", "default": False},
    "principal-rules": {"type": "string", "description": "rules of ssl.principal.mapping.rules", "default": "DEFAULT"},
    "sasl": _some_of(MECHANISMS, '["SCRAM-SHA-512"]', "mechanisms"),
}
FILES = ("tls-cert", "tls-key", "tls-client-ca", "tls-client-crl", "console-config", "tenant-redis-passwords")
"""Settings that are files: a relative path is taken from the config file's own directory."""
LISTENER_NAMES = tuple(_LISTENER)
"""What describes a listener: the only one in ``[serve]`` and the flags, else each in a table of its own."""
TOGETHER_NAMES = ("tenant-redis-passwords",)
"""Settings that are right only beside others."""
CONSOLE_NAMES = ("metrics", "metrics-hostnames", "console", "console-config", "console-hostnames")
"""What describes the HTTP port and the console on it."""


def _hostnames(example: str) -> dict[str, Any]:
    return {
        "type": "array",
        "items": {"type": "string", "minLength": 1, "maxLength": 255},
        "minItems": 1,
        "uniqueItems": True,
        "description": f'a list of host names, for example ["{example}"]',
    }


_SERVE = {
    **_LISTENER,
    "redis": {"type": "string", "description": "a Redis URL, for example redis://127.0.0.1:6379", "minLength": 1},
    "tenant-redis-passwords": {"type": "string", "description": "a directory", "minLength": 1},
    "data-dir": {"type": "string", "description": "a directory", "minLength": 1, "default": "data"},
    "tier": {"type": "string", "description": "a directory or the URL of a bucket", "minLength": 1},
    "tier-cache": {"type": "string", "description": "a directory", "minLength": 1},
    "tier-cache-bytes": {"type": "integer", "minimum": 64 << 20, "default": 10 << 30},
    "workers": {"type": "integer", "minimum": 1, "maximum": 256, "default": 1},
    "metrics": _ADDRESS,
    "console": {"enum": list(CONSOLES), "default": CONSOLES[0]},
    "console-config": {"type": "string", "description": "a file with a client's settings", "minLength": 1},
    "console-hostnames": _hostnames("console.example"),
    "metrics-hostnames": _hostnames("korvet.example"),
    "log-level": {"enum": list(LOG_LEVELS), "default": "info"},
    "log-format": {"enum": list(LOG_FORMATS), "default": "text"},
}
_TYPES = {
    Kind.BOOLEAN: "boolean",
    Kind.INT: "integer",
    Kind.SHORT: "integer",
    Kind.LONG: "integer",
    Kind.DOUBLE: "number",
    Kind.STRING: "string",
    Kind.LIST: "string",
}


def config_schema() -> dict[str, Any]:
    """The schema (draft 2020-12). Broker settings are those of the broker's own table that can be set."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Config file of korvet serve and korvet pipeline",
        "type": "object",
        "additionalProperties": False,
        "properties": {
            "serve": {"type": "object", "additionalProperties": False, "properties": _SERVE},
            "listener": {
                "type": "array",
                "minItems": 1,
                "description": "[[listener]] tables",
                "items": {
                    "type": "object",
                    "additionalProperties": False,
                    "properties": _LISTENER,
                    "required": ["listen"],
                },
            },
            "broker": {
                "type": "object",
                "additionalProperties": False,
                "properties": {
                    name: _broker_setting(config) for name, config in BROKER_CONFIGS.items() if not config.is_fixed
                },
                "patternProperties": {OF_LISTENERS: {"type": "integer", "description": "a bound of one listener"}},
            },
            "pipeline": PIPELINE,
        },
    }


def _broker_setting(config: Config) -> dict[str, Any]:
    return {"type": _TYPES[config.kind], "description": config.documentation}
