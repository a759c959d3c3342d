"""The settings of ``korvet serve``: flags and the config file, as one frozen value."""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from korvet.configs.types import is_per_ip_overrides, parse_per_ip_overrides
from korvet.errors import ConfigError
from korvet.server.machine import memory_bytes
from korvet.store.log.budget import DEFAULT_BUDGET_BYTES
from korvet.store.log.partitions import DEFAULT_CACHE_BYTES
from korvet.wire.frames import DEFAULT_MAX_FRAME_BYTES

_WILDCARDS = {"", "0.0.0.0", "::"}
_IDLE_MS = 600_000
_QUEUED_BYTES = 512 << 20
_UNFINISHED_BYTES = 256 << 20
_MOST = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerSettings:
    """One listener: its address, the address that its clients are told, and the namespace of its topics and groups.

    ``port`` is 0 for a free one. Each port of a load balancer, from ``advertised_port`` to ``advertised_last_port``, is
    a node of its own. With ``proxy_protocol`` connections begin with a load balancer's header.
    """

    host: str = "127.0.0.1"
    port: int = 9092
    advertised_host: str | None = None
    advertised_port: int | None = None
    advertised_last_port: int | None = None
    namespace: str = "default"
    proxy_protocol: bool = False

    def advertised(self, port: int) -> tuple[str, int]:
        """The host and port that clients are told; ``port`` is the bound one.

        Without an advertised address these are the listener's own. A wildcard becomes the machine's host name.
        """
        host = self.advertised_host or self.host
        return (socket.gethostname() if host in _WILDCARDS else host, self.advertised_port or port)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeSettings:
    """All settings of a broker. ``broker`` holds those with Kafka's names, as text."""

    listeners: tuple[ListenerSettings, ...] = (ListenerSettings(),)
    redis_url: str | None = None
    data_dir: Path = Path("data")
    workers: int = 1
    log_level: str = "info"
    log_format: str = "text"
    broker: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> str:
        """The settings as JSON, for a worker process."""
        return json.dumps({**asdict(self), "data_dir": str(self.data_dir), "broker": dict(self.broker)})

    @classmethod
    def from_json(cls, text: str) -> ServeSettings:
        values = json.loads(text)
        listeners = tuple(ListenerSettings(**listener) for listener in values["listeners"])
        return cls(**{**values, "listeners": listeners, "data_dir": Path(values["data_dir"])})


def check_listeners(listeners: Sequence[ListenerSettings]) -> None:
    """Refuse two listeners with one address, or two of a namespace without an advertised address.

    :raises ConfigError: if there are two such listeners.
    """
    for at, listener in enumerate(listeners):
        for other in listeners[:at]:
            if listener.port and (listener.host, listener.port) == (other.host, other.port):
                raise ConfigError(f"two listeners on {shown_address(listener.host, listener.port)}")
            if listener.namespace == other.namespace and listener.advertised_host is other.advertised_host is None:
                raise ConfigError(
                    f"two listeners of namespace {listener.namespace!r} without an advertised address: clients "
                    "of one would be sent to the other"
                )


def shown_address(host: str, port: int) -> str:
    """``HOST:PORT``, an IPv6 host in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds of a front-end process.

    A request counts from its arrival to its answer, with its bytes and a flat charge for its objects. Unfinished large
    frames have a bound of their own, and so have unread answers. While others wait for memory, a connection that makes
    no progress for ``stall_s`` is cut off, at the latest after twice that time.
    """

    max_frame_bytes: int = DEFAULT_MAX_FRAME_BYTES
    max_idle_ms: int = _IDLE_MS
    connection_bytes: int = 64 << 20
    process_bytes: int = _QUEUED_BYTES
    large_frames_bytes: int = _UNFINISHED_BYTES
    max_connections: int = _MOST
    max_connections_per_ip: int = _MOST
    max_connections_overrides: Mapping[str, int] = field(default_factory=dict)
    answer_bytes: int = DEFAULT_BUDGET_BYTES
    cache_bytes: int = DEFAULT_CACHE_BYTES
    stall_s: float = 5.0
    drain_s: float = 5.0
    proxy_header_s: float = 5.0


def limits_of(broker: Mapping[str, str]) -> Limits:
    """The bounds that Kafka's settings and korvet's own settings name.

    :raises ConfigError: if a setting is not in its range.
    """
    queued = _number(broker, "queued.max.request.bytes", -1, -1)
    memory = memory_bytes()
    unfinished = _number(broker, "korvet.unfinished.request.max.bytes", -1, -1)
    answers = _number(broker, "korvet.queued.max.response.bytes", -1, -1)
    cache = _number(broker, "korvet.read.cache.max.bytes", -1, -1)
    return Limits(
        max_frame_bytes=_number(broker, "socket.request.max.bytes", DEFAULT_MAX_FRAME_BYTES, 1),
        max_idle_ms=_number(broker, "connections.max.idle.ms", _IDLE_MS, -1),
        process_bytes=queued if queued > 0 else min(_QUEUED_BYTES, memory // 4),
        large_frames_bytes=unfinished if unfinished > 0 else min(_UNFINISHED_BYTES, memory // 8),
        answer_bytes=answers if answers > 0 else min(DEFAULT_BUDGET_BYTES, memory // 8),
        cache_bytes=cache if cache >= 0 else min(DEFAULT_CACHE_BYTES, memory // 16),
        max_connections=_number(broker, "max.connections", _MOST, 0),
        max_connections_per_ip=_number(broker, "max.connections.per.ip", _MOST, 0),
        max_connections_overrides=_overrides(broker.get("max.connections.per.ip.overrides", "")),
    )


def _overrides(text: str) -> Mapping[str, int]:
    """The numbers of addresses with their own bound: ``127.0.0.1:200,::1:300``.

    :raises ConfigError: if the text has another form.
    """
    if (why := is_per_ip_overrides(text)) is not None:
        raise ConfigError(f"max.connections.per.ip.overrides: {why}")
    return parse_per_ip_overrides(text)


def _number(broker: Mapping[str, str], name: str, default: int, lowest: int) -> int:
    text = broker.get(name)
    if text is None:
        return default
    try:
        value = int(text)
    except ValueError:
        raise ConfigError(f"{name}: {text!r} is not a number") from None
    if not lowest <= value < 2**63:
        raise ConfigError(f"{name}: {value} is below {lowest}" if value < lowest else f"{name}: {value} is too large")
    return value
