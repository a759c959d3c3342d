"""The telemetry of clients (KIP-714): the metrics that a client has to push, and when it may.

The state of a client instance belongs to its connection: front-ends share nothing, and a client that reconnects
elsewhere goes on there. All front-ends compute the same subscription id from the instance's id and its subscriptions.

Source: org.apache.kafka.server.ClientMetricsManager, ClientMetricsInstance.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from time import monotonic
from typing import TYPE_CHECKING, Final, Protocol
from uuid import UUID

import crc32c
import structlog
from kio.schema.errors import ErrorCode

from korvet.configs.client_metrics import ALL_METRICS, DEFAULT_INTERVAL_MS, Subscription, Traits, subscription

if TYPE_CHECKING:
    from korvet.store.catalog.catalog import Catalog
from korvet.store.catalog.settings import Owner

log = structlog.get_logger()

UNKNOWN: Final = "unknown"
MOST_SOFTWARE_CHARACTERS: Final = 256
"""The stored length of a software name."""
ASKS_AGAIN: Final = (ErrorCode.unknown_subscription_id, ErrorCode.unsupported_compression_type)
"""The refusals of a push after which a client may get its subscriptions at once."""


@dataclass(slots=True)
class Instance:
    """The last state of a client instance on its connection; times are by `monotonic`, in seconds."""

    id: UUID
    of: Sequence[Subscription]
    """The subscriptions at that time."""
    metrics: Sequence[str]
    interval_ms: int
    subscription_id: int
    got_at: float = -inf
    pushed_at: float = -inf
    is_terminating: bool = False
    last_error: ErrorCode = ErrorCode.none
    taken_at: float = -inf
    """The time of the last decompressed push."""
    waits_until: float = -inf
    """The earliest time of a push, after a decompressed one of another instance of the same connection."""

    def follow(self, earlier: Instance) -> None:
        """Follow an instance of the same connection, so that a client with new ids may push no more often."""
        self.waits_until, self.taken_at = earlier.waits_until, earlier.taken_at
        if earlier.id != self.id:
            self.waits_until = max(self.waits_until, earlier.taken_at + self.interval_ms / 1000)

    def may_get(self) -> bool:
        """Record a request for the subscriptions; false if it comes before the next push is due."""
        now = monotonic()
        if now - max(self.got_at, self.pushed_at) >= self.interval_ms / 1000:
            self.got_at = now
            return True
        return False

    def may_push(self, *, is_last: bool = False) -> bool:
        """Record a push; false if it is too early. The first one after such a request, and an id's last, never are."""
        now = monotonic()
        may = is_last or self.got_at > self.pushed_at or now - self.pushed_at >= self.interval_ms / 1000
        if may := may and now >= self.waits_until:
            self.pushed_at = now
        return may


@dataclass(slots=True)
class Peer:
    """Facts about a connection's client that hold for all of its requests."""

    software_name: str = UNKNOWN
    software_version: str = UNKNOWN
    dates_batches: bool = False
    """True if its library is one that computes a batch's greatest timestamp from the records."""
    port: int | None = None
    instance: Instance | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Push:
    """Metrics that a client pushed: an OTLP MetricsData, compressed by a codec of record batches."""

    namespace: str
    client: Traits
    principal: str
    interval_ms: int
    codec: int
    data: bytes


class Receiver(Protocol):
    """The receiver of pushed metrics."""

    async def receive(self, push: Push, most_bytes: int) -> ErrorCode:
        """Take a push of at most so many decompressed bytes; else TELEMETRY_TOO_LARGE or INVALID_RECORD."""


class Telemetry:
    """The subscriptions of a namespace, and the receiver of its clients' pushes; None without metrics."""

    def __init__(self, catalog: Catalog, receiver: Receiver | None) -> None:
        self.receiver = receiver
        self._catalog = catalog
        self._read = catalog.owned(Owner.CLIENT_METRICS)
        self._subscriptions: Sequence[Subscription] = ()

    @property
    def most_bytes(self) -> int:
        """The most bytes of a push."""
        return self._catalog.integer(None, "telemetry.max.bytes")

    def instance(self, peer: Peer, client: Traits, id: UUID) -> Instance:
        """The client instance with this id; a new one if it is not the last one, or subscriptions have changed."""
        found, now = peer.instance, self._now()
        if found is None or found.id != id or found.of is not now:
            earlier, found = found, _instance(id, client, now)
            if earlier is not None:
                found.follow(earlier)
            peer.instance = found
        return found

    def _now(self) -> Sequence[Subscription]:
        owned = self._catalog.owned(Owner.CLIENT_METRICS)
        if owned is not self._read:
            self._read = owned
            read = (_readable(name, configs) for name, configs in self._read.items())
            self._subscriptions = [found for found in read if found is not None]
        return self._subscriptions


def _readable(name: str, configs: Mapping[str, str]) -> Subscription | None:
    """A subscription; None, with a log line, if its configs are invalid: they may be older than the current bounds."""
    try:
        return subscription(configs)
    except ValueError as error:
        log.warning("a subscription of client metrics is not used", name=name, reason=str(error))
        return None


def _instance(id: UUID, client: Traits, subscriptions: Sequence[Subscription]) -> Instance:
    own = [one for one in subscriptions if one.matches(client)]
    metrics = sorted(frozenset[str]().union(*(one.metrics for one in own)))
    if ALL_METRICS in metrics:
        metrics = [ALL_METRICS]
    interval_ms = min([DEFAULT_INTERVAL_MS, *(one.interval_ms for one in own)])
    return Instance(id, subscriptions, metrics, interval_ms, _subscription_id(id, metrics, interval_ms))


def _subscription_id(id: UUID, metrics: Sequence[str], interval_ms: int) -> int:
    """Kafka's: the checksum of the metrics, as Java prints a set, and the interval, XOR the hash of the id."""
    checksum = crc32c.crc32c(f"[{', '.join(metrics)}]{interval_ms}".encode())
    halves = (id.int >> 64) ^ (id.int & (1 << 64) - 1)
    number = checksum ^ (halves >> 32) ^ (halves & 0xFFFFFFFF)
    return number - (1 << 32) if number >= 1 << 31 else number


def shown(id: UUID) -> str:
    """An id as Kafka writes it."""
    return base64.urlsafe_b64encode(id.bytes).decode().rstrip("=")
