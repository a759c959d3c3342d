"""What `korvet serve` is told: flags and the config file, as one frozen value."""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from korvet.errors import ConfigError
from korvet.wire.frames import DEFAULT_MAX_FRAME_BYTES

_WILDCARDS = {"", "0.0.0.0", "::"}
_IDLE_MS = 600_000
_QUEUED_BYTES = 512 << 20
_UNFINISHED_BYTES = 256 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerSettings:
    """One door: where it listens, what its clients are told, whose topics and groups are behind it, who knocks.

    ``port`` is 0 for a free one. A load balancer that listens on several ports, up to ``advertised_last_port``, is
    shown as so many brokers. With ``proxy_protocol`` connections begin with a load balancer's header.
    """

    host: str = "127.0.0.1"
    port: int = 9092
    advertised_host: str | None = None
    advertised_port: int | None = None
    advertised_last_port: int | None = None
    namespace: str = "default"
    proxy_protocol: bool = False

    def advertised(self, port: int) -> tuple[str, int]:
        """Host and port that clients are told, where ``port`` is what was bound.

        Without an advertised address this is the listen address; a wildcard stands for the machine's host name.
        """
        host = self.advertised_host or self.host
        return (socket.gethostname() if host in _WILDCARDS else host, self.advertised_port or port)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeSettings:
    """Everything a broker is started with. ``broker`` holds settings under Kafka's names, as text."""

    listeners: tuple[ListenerSettings, ...] = (ListenerSettings(),)
    redis_url: str | None = None
    data_dir: Path = Path("data")
    workers: int = 1
    log_level: str = "info"
    log_format: str = "text"
    broker: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> str:
        """For a worker process."""
        return json.dumps({**asdict(self), "data_dir": str(self.data_dir), "broker": dict(self.broker)})

    @classmethod
    def from_json(cls, text: str) -> ServeSettings:
        values = json.loads(text)
        listeners = tuple(ListenerSettings(**listener) for listener in values["listeners"])
        return cls(**{**values, "listeners": listeners, "data_dir": Path(values["data_dir"])})


def check_listeners(listeners: Sequence[ListenerSettings]) -> None:
    """Refuse listeners that stand in each other's way.

    :raises ConfigError: with what two of them have in common.
    """
    for at, listener in enumerate(listeners):
        for other in listeners[:at]:
            if listener.port and (listener.host, listener.port) == (other.host, other.port):
                raise ConfigError(f"two listeners on {shown_address(listener.host, listener.port)}")
            if listener.namespace == other.namespace and listener.advertised_host is other.advertised_host is None:
                raise ConfigError(
                    f"two listeners of namespace {listener.namespace!r} without an advertised address: their clients "
                    "would be told of each other's"
                )


def shown_address(host: str, port: int) -> str:
    """``HOST:PORT``, an IPv6 host in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds of a front-end process.

    A request counts from its arrival to its answer, with its bytes and a flat charge for its objects. Beside that,
    unfinished large frames and answers that clients do not read have a bound each; who makes no progress for
    ``stall_s`` to two times that loses its connection, where others wait for memory.
    """

    max_frame_bytes: int = DEFAULT_MAX_FRAME_BYTES
    max_idle_ms: int = _IDLE_MS
    connection_bytes: int = 64 << 20
    process_bytes: int = _QUEUED_BYTES
    large_frames_bytes: int = _UNFINISHED_BYTES
    unsent_bytes: int = _UNFINISHED_BYTES
    stall_s: float = 5.0
    drain_s: float = 5.0
    proxy_header_s: float = 5.0


def limits_of(broker: Mapping[str, str]) -> Limits:
    """The bounds that Kafka's settings ask for.

    :raises ConfigError: where one is not a number in its range.
    """
    queued = _number(broker, "queued.max.request.bytes", -1, -1)
    return Limits(
        max_frame_bytes=_number(broker, "socket.request.max.bytes", DEFAULT_MAX_FRAME_BYTES, 1),
        max_idle_ms=_number(broker, "connections.max.idle.ms", _IDLE_MS, -1),
        process_bytes=queued if queued > 0 else _QUEUED_BYTES,
    )


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
