"""The configs of client metrics: the metrics to push, the interval, and the clients (KIP-714).

A resource of client metrics is a subscription. A client has all subscriptions that match it.

Source: org.apache.kafka.server.metrics.ClientMetricsConfigs.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from korvet.configs.types import Config, Kind, parse, problem, split, table
from korvet.patterns import compiled

ALL_METRICS: Final = "*"
DEFAULT_INTERVAL_MS: Final = 300_000
MOST_CHARACTERS: Final = 10_000
"""The longest value: each client receives its subscriptions' metrics and is matched against their patterns."""
_LEAST_INTERVAL_MS, _MOST_INTERVAL_MS = 100, 3_600_000

CLIENT_METRICS_CONFIGS: Final = table(
    [
        Config("interval.ms", Kind.INT, str(DEFAULT_INTERVAL_MS),
               documentation="Metrics push interval in milliseconds"),
        Config("match", Kind.LIST, "", documentation="Client match criteria"),
        Config("metrics", Kind.LIST, "", documentation="Telemetry metric name prefix list"),
    ]
)  # fmt: skip


class Traits(NamedTuple):
    """A client's traits, for patterns; no pattern matches an unknown one (None)."""

    client_instance_id: str
    client_id: str | None
    client_software_name: str
    client_software_version: str
    client_source_address: str
    client_source_port: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """A subscription: prefixes of metric names, and compiled patterns by the trait to match."""

    metrics: frozenset[str]
    interval_ms: int
    patterns: Mapping[str, Any]

    def matches(self, client: Traits) -> bool:
        """True if a client has this subscription; without patterns every client has."""
        for trait, pattern in self.patterns.items():
            value = getattr(client, trait)
            if value is None or pattern.fullmatch(value) is None:
                return False
        return True


class UnknownConfig(ValueError):
    """An unknown config, or an interval out of range: Kafka's INVALID_REQUEST, not INVALID_CONFIG."""


def subscription(configs: Mapping[str, str]) -> Subscription:
    """The subscription in a resource's own configs.

    :raises UnknownConfig: a name is not known, or the interval is out of range.
    :raises ValueError: a value is wrong; the message has Kafka's words.
    """
    for name in configs:
        if name not in CLIENT_METRICS_CONFIGS:
            raise UnknownConfig(f"Unknown client metrics configuration: {name}")
    for name, value in configs.items():
        why = problem(CLIENT_METRICS_CONFIGS[name], value)
        if why is not None:
            raise ValueError(why)
        if len(value) > MOST_CHARACTERS:
            raise ValueError(f"The value of {name} has more than {MOST_CHARACTERS} characters.")
    interval_ms = parse(Kind.INT, configs.get("interval.ms", str(DEFAULT_INTERVAL_MS)))
    assert isinstance(interval_ms, int)
    if not _LEAST_INTERVAL_MS <= interval_ms <= _MOST_INTERVAL_MS:
        raise UnknownConfig(
            f"Invalid value {interval_ms} for interval.ms, interval must be between 100 and 3600000 (1 hour)"
        )
    return Subscription(
        metrics=frozenset(split(configs.get("metrics", ""))),
        interval_ms=interval_ms,
        patterns=dict(map(_pattern, split(configs.get("match", "")))),
    )


def _pattern(text: str) -> tuple[str, Any]:
    """A trait, and the compiled expression for it.

    :raises ValueError: the text is no ``TRAIT=EXPRESSION``.
    """
    # As in Java's String.split, empty parts at the end do not count.
    parts = text.rstrip("=").split("=")
    if len(parts) == 2 and parts[0].strip() in Traits._fields:
        with suppress(ValueError):
            return parts[0].strip(), compiled(parts[1].strip())
    raise ValueError(f"Illegal client matching pattern: {text}")
