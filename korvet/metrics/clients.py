"""The metrics that clients pushed (KIP-714), as a supervisor keeps them and tells them at ``/metrics``.

Of each client instance the newest push counts, whichever front-end process took it. A client that pushes no more
vanishes after three of its intervals. Series are bounded: clients that come when the bound is reached are left out.
Names and labels are those that `korvet.metrics.otlp` makes of a client's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any, Final

from korvet.metrics.families import FAMILIES
from korvet.metrics.otlp import MOST_VALUE_CHARACTERS, OWN_LABELS
from korvet.metrics.samples import Samples

_LEAST_KEPT_S: Final = 60.0
_INTERVALS: Final = 3
_LABEL_CHARACTERS: Final = 200
"""Labels of so many characters count as one series more."""
_INFO: Final = FAMILIES["korvet_client_info"].labels
Pushed = Mapping[str, Sequence[tuple[Mapping[str, str], float]]]
"""Series by the metric's name: labels and value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Client:
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
        self._clients: dict[tuple[str, str], _Client] = {}
        self._cost = 0
        self._dropped: Counter[tuple[str, str]] = Counter()

    def take(self, told: Mapping[str, Any]) -> None:
        """Take a push, as `korvet.server.pushes` writes it."""
        client, namespace = told["client"], told["namespace"]
        self._expire()
        for reason, count in told["dropped"].items():
            self._dropped[namespace, reason] += count
        key = namespace, client["client_instance_id"]
        self._forget(key)
        labels = {"namespace": namespace, **{name: _short(client[name]) for name in OWN_LABELS[1:]}}
        taken = _Client(
            info=(namespace, *(_short(client.get(name)) for name in _INFO[1:])),
            series=[(name, {**dict(others), **labels}, value) for name, others, value in told["series"]],
            cost=1 + sum(map(_cost, told["series"])),
            ends_at=self._now() + max(_LEAST_KEPT_S, _INTERVALS * told["interval_ms"] / 1000),
        )
        if self._cost + taken.cost > self._most:
            self._dropped[namespace, "clients"] += len(taken.series)
            return
        self._clients[key] = taken
        self._cost += taken.cost

    def add_to(self, samples: Samples) -> None:
        """Add what is told of the clients themselves."""
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
        now = self._now()
        for key in [key for key, client in self._clients.items() if client.ends_at <= now]:
            self._forget(key)

    def _forget(self, key: tuple[str, str]) -> None:
        known = self._clients.pop(key, None)
        if known is not None:
            self._cost -= known.cost


def _short(text: str | None) -> str:
    return (text or "")[:MOST_VALUE_CHARACTERS]


def _cost(series: tuple[str, Sequence[tuple[str, str]], float]) -> int:
    name, labels, _ = series
    return 1 + (len(name) + sum(len(label) + len(value) for label, value in labels)) // _LABEL_CHARACTERS
