"""The metrics that clients pushed (KIP-714), as a supervisor keeps them and serves them at ``/metrics``.

The newest push of a client instance's principal counts, whichever front-end process took it. The supervisor forgets a
client three intervals after its last push. Series are bounded, and each user and address has a fair share of them: when
the room is used up, the largest holders give way. `korvet.metrics.otlp` makes the names and labels.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from time import monotonic
from typing import Any, Final

from korvet.metrics.families import FAMILIES
from korvet.metrics.otlp import MOST_VALUE_CHARACTERS, OWN_LABELS
from korvet.metrics.samples import Samples
from korvet.metrics.shares import Key, Path, Shares
from korvet.rate_limited_log import RateLimitedLog

_LEAST_KEPT_S: Final = 60.0
_INTERVALS: Final = 3
_LOOK_S: Final = 1.0
_LABEL_CHARACTERS: Final = 200
"""A series counts as one more for each such length of its labels."""
_INFO: Final = FAMILIES["korvet_client_info"].labels
Pushed = Mapping[str, Sequence[tuple[Mapping[str, str], float]]]
"""Series by the metric's name: labels and value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Client:
    source: Path
    info: tuple[str, ...]
    series: Sequence[tuple[str, Mapping[str, str], float]]
    cost: int
    ends_at: float


class Clients:
    """The clients of a process tree, by namespace and instance id.

    :param most: the most series.
    :param now: a clock in seconds.
    """

    def __init__(self, most: int, now: Callable[[], float] = monotonic) -> None:
        self._most = most
        self._now = now
        self._clients: dict[Key, _Client] = {}
        self._shares = Shares()
        self._expires_at = -inf
        self._lines = RateLimitedLog(clock=now)
        self._dropped: Counter[tuple[str, str]] = Counter()

    def update(self, push: Mapping[str, Any]) -> None:
        """Take a push, as `korvet.server.tenants.telemetry_receiver` writes it."""
        client, namespace = push["client"], push["namespace"]
        self._expire()
        for reason, count in push["dropped"].items():
            self._dropped[namespace, reason] += count
        key = namespace, client["client_instance_id"]
        labels = {"namespace": namespace, **{name: _short(client[name]) for name in OWN_LABELS[1:]}}
        taken = _Client(
            source=(namespace, client.get("principal") or "", client.get("client_source_address") or ""),
            info=(namespace, *(_short(client.get(name)) for name in _INFO[1:])),
            series=[(name, {**dict(others), **labels}, value) for name, others, value in push["series"]],
            cost=1 + sum(map(_cost, push["series"])),
            ends_at=self._now() + max(_LEAST_KEPT_S, _INTERVALS * push["interval_ms"] / 1000),
        )
        if (known := self._clients.get(key)) is not None and known.source[:2] != taken.source[:2]:
            # The id belongs to another principal until that one stops pushing.
            self._dropped[namespace, "principal"] += len(taken.series)
            return
        earlier = None if known is None else self._forget(key)
        left_out = self._make_room(taken)
        if left_out is None:
            if earlier is not None:
                self._keep(key, earlier)
            self._leave_out(key, taken)
            return
        for other, gone in left_out.items():
            self._leave_out(other, gone)
        self._keep(key, taken)

    def _make_room(self, taken: _Client) -> Mapping[Key, _Client] | None:
        """Forget the clients that give way to another one; None if it gets no room, and all stay."""
        gone: dict[Key, _Client] = {}
        while self._shares.cost + taken.cost > self._most:
            first = self._shares.first_to_go(taken.source, taken.cost)
            if first is None:
                for key, client in gone.items():
                    self._keep(key, client)
                return None
            gone[first] = self._forget(first)
        return gone

    def _leave_out(self, key: Key, client: _Client) -> None:
        self._dropped[key[0], "clients"] += len(client.series)
        self._lines.write(
            "warning",
            "metrics of clients are left out: there are as many series as korvet.metrics.max.client.series allows",
            namespace=key[0], principal=client.source[1], client=client.source[2], series=len(client.series),
        )  # fmt: skip

    def add_to(self, samples: Samples) -> None:
        """Add the figures about the clients themselves."""
        self._expire()
        for (namespace, _), client in self._clients.items():
            samples.set("korvet_client_info", 1, *client.info)
            name = "korvet_client_metrics_series"
            had = samples.values.get(name, {}).get((namespace,), 0)
            assert isinstance(had, int | float)
            samples.set(name, had + len(client.series), namespace)
        for (namespace, reason), count in self._dropped.items():
            samples.set("korvet_client_metrics_dropped_total", count, namespace, reason)

    def pushed(self) -> Pushed:
        """The series of all clients."""
        self._expire()
        found: dict[str, list[tuple[Mapping[str, str], float]]] = {}
        for client in self._clients.values():
            for name, labels, value in client.series:
                found.setdefault(name, []).append((labels, value))
        return found

    def _expire(self) -> None:
        """Forget clients that stopped pushing; at most once a second, because this looks at all of them."""
        now = self._now()
        if now < self._expires_at:
            return
        self._expires_at = now + _LOOK_S
        for key in [key for key, client in self._clients.items() if client.ends_at <= now]:
            self._forget(key)

    def _keep(self, key: Key, client: _Client) -> None:
        self._clients[key] = client
        self._shares.add(client.source, key, client.cost)

    def _forget(self, key: Key) -> _Client:
        known = self._clients.pop(key)
        self._shares.remove(known.source, key)
        return known


def _short(text: str | None) -> str:
    return (text or "")[:MOST_VALUE_CHARACTERS]


def _cost(series: tuple[str, Sequence[tuple[str, str]], float]) -> int:
    name, labels, _ = series
    return 1 + (len(name) + sum(len(label) + len(value) for label, value in labels)) // _LABEL_CHARACTERS
